from collections import Counter
from itertools import islice, pairwise

import pytest

from polybus.fleet.calls import calls, reactions
from polybus.fleet.decoding import Limits, Rejected, decode_message
from polybus.fleet.driving import BREAK_AFTER_S, REST_AFTER_S, REST_S, Itinerary
from polybus.fleet.records import Position, Update
from polybus.fleet.roads import make_country
from polybus.fleet.schedule import Plan, sendings, truck_name, truck_sendings, update_sendings
from polybus.fleet.telemetry import PIECES, UPDATE_BYTES

COUNTRY = make_country(7)
START_MS = 1_790_000_000_000
HOUR_S = 3600.0


def plan(**changes):
    return Plan(
        **{"country": COUNTRY, "trucks": 3, "seed": 7, "start_ms": START_MS, "duration_s": HOUR_S} | changes
    )


def decoded(sending):
    return decode_message(sending.topic, sending.payload, START_MS, Limits())


def test_all_follows_from_the_plan():
    assert list(sendings(plan())) == list(sendings(plan()))
    assert list(sendings(plan(seed=8))) != list(sendings(plan()))


def test_a_truck_does_the_same_whatever_the_size_of_the_fleet():
    alone = list(truck_sendings(plan(trucks=1), truck_name(1)))
    assert alone == [each for each in sendings(plan(trucks=3)) if each.sender == truck_name(1)]


def test_sendings_come_in_order_of_time_within_the_duration():
    times = [each.send_s for each in sendings(plan())]
    assert times == sorted(times)
    assert times[-1] <= HOUR_S


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_rates_and_sizes_are_those_of_table_2_2(encoding):
    made, size = Counter(), Counter()
    hours, trucks = 4, 5
    for each in sendings(plan(trucks=trucks, duration_s=hours * HOUR_S, encoding=encoding)):
        if not each.is_copy:
            made[each.kind] += 1
            size[each.kind] += len(each.payload)
    per_truck_hour = {kind: made[kind] / hours / trucks for kind in made}
    # What waits for coverage at the end is not sent; a rate is at most the table's.
    assert 500 < per_truck_hour["vehicle"] <= 600
    assert 50 < per_truck_hour["position"] <= 60
    assert 3 < per_truck_hour["tachograph"] <= 4
    assert 95_000 < size["tachograph"] / made["tachograph"] < 105_000
    if encoding == "json":
        assert 900 < size["vehicle"] / made["vehicle"] < 1100
        assert 900 < size["position"] / made["position"] < 1100


def test_an_update_is_ten_megabytes_in_pieces_that_join():
    pieces = list(
        islice(update_sendings(plan(trucks=1, duration_s=20 * HOUR_S, updates_per_truck_day=2.0)), PIECES)
    )
    records = [decoded(each) for each in pieces]
    assert all(isinstance(each, Update) for each in records)
    assert [each.piece for each in records] == list(range(PIECES))
    assert {each.pieces for each in records} == {PIECES}
    assert sum(len(each.payload) for each in pieces) == pytest.approx(UPDATE_BYTES, rel=0.02)


def test_gaps_make_records_late_out_of_order_and_double():
    sent = list(sendings(plan(trucks=8, duration_s=8 * HOUR_S)))
    assert any(each.send_s - each.made_s > 300 for each in sent)
    assert any(each.is_copy for each in sent)
    of_one = [each.made_s for each in sent if each.sender == truck_name(1) and not each.is_copy]
    assert any(later < earlier for earlier, later in pairwise(of_one))
    ids = Counter(decoded(each).id for each in sent)
    assert max(ids.values()) == 2
    assert sum(ids.values()) - len(ids) == sum(each.is_copy for each in sent)


def test_ids_of_another_start_are_others():
    first = {decoded(each).id for each in islice(sendings(plan()), 100)}
    assert not first & {decoded(each).id for each in islice(sendings(plan(start_ms=START_MS + 1)), 100)}


def test_a_damaged_share_is_about_that_and_comes_in_every_kind():
    sent = list(sendings(plan(trucks=5, duration_s=4 * HOUR_S, damaged_share=0.1)))
    reasons = Counter(each.reason for each in map(decoded, sent) if isinstance(each, Rejected))
    assert 0.08 < reasons.total() / len(sent) < 0.12
    assert len(reasons) >= 9


@pytest.mark.parametrize("number", range(1, 6))
def test_trucks_stay_on_the_road_and_keep_the_rules(number):
    itinerary = Itinerary(7, truck_name(number), COUNTRY)
    fixes = [itinerary.at(float(time)) for time in range(0, 3 * 86_400, 60)]
    for before, after in pairwise(fixes):
        # 90 km/h for a minute, and a bit for bends
        assert before.place.to(after.place) <= 90 / 60 + 0.01
        assert after.odometer_km >= before.odometer_km
    assert max(each.driven_s for each in fixes) < REST_AFTER_S + HOUR_S
    assert sum(each.is_resting for each in fixes) >= REST_S / 60
    moving = 0
    for each in fixes:
        moving = moving + 60 if each.is_moving else 0
        assert moving < BREAK_AFTER_S + HOUR_S


def test_a_truck_that_rests_only_gives_a_sign_of_life():
    sent = [
        decoded(each)
        for each in truck_sendings(
            plan(trucks=1, duration_s=48 * HOUR_S, updates_per_truck_day=0.0), truck_name(1)
        )
    ]
    itinerary = Itinerary(7, truck_name(1), COUNTRY)
    resting = [each for each in sent if itinerary.at((each.at - START_MS) / 1000).is_resting]
    assert resting
    assert all(isinstance(each, Position) for each in resting)


def test_calls_and_reactions_follow_from_the_plan_too():
    assert list(calls(plan())) == list(calls(plan()))
    asked = Counter(each.truck for each in calls(plan(trucks=4, duration_s=100 * HOUR_S)))
    assert set(asked) == {truck_name(number) for number in range(1, 6)}  # the fifth does not exist
    assert list(islice(reactions(plan(), "truck-001"), 9)) == list(islice(reactions(plan(), "truck-001"), 9))
    assert list(islice(reactions(plan(), "truck-001"), 9)) != list(islice(reactions(plan(), "truck-002"), 9))
