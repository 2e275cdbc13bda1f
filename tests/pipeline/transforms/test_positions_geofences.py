"""The state machine by itself; tests/pipeline/jobs runs it in Spark."""

import random

import msgspec

from polybus.pipeline.geography import Geofence
from polybus.pipeline.transforms.positions_geofences import BEHIND, ENTER, LEAVE, Fix, Visits, visit

BOX = ((0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0), (0.0, 0.0))
FENCES = [
    Geofence("big", ((BOX,),), (0.0, 0.0, 10.0, 10.0)),
    Geofence("small", ((tuple((x / 2, y / 2) for x, y in BOX),),), (0.0, 0.0, 5.0, 5.0)),
]
SECOND = 1_000_000


def fix(second, place):
    return Fix(second * SECOND, float(place), 1.0)


def told(events):
    return [(each.fix.at_us // SECOND, each.geofence, each.event, each.stayed_s) for each in events]


WAY = [fix(0, 20), fix(10, 9), fix(20, 4), fix(30, 4), fix(40, 8), fix(50, 30)]
STORY = [
    (10, "big", ENTER, None),
    (20, "small", ENTER, None),
    (40, "small", LEAVE, 20.0),
    (50, "big", LEAVE, 40.0),
]


def test_a_way_through_two_fences():
    assert told(visit(Visits(), WAY, FENCES, 0)) == STORY


def test_the_story_is_the_same_in_any_order_that_settles_in_time():
    for seed in range(50):
        shuffled = WAY[:]
        random.Random(seed).shuffle(shuffled)
        state, story = Visits(), []
        for each in shuffled:
            story += visit(state, [each], FENCES, 60 * SECOND)
        assert story == []  # all is held back
        story += visit(state, [fix(200, 30)], FENCES, 60 * SECOND)
        assert told(story) == STORY


def test_the_story_is_the_same_in_any_pieces():
    for cut in range(len(WAY)):
        state = Visits()
        first = visit(state, WAY[:cut], FENCES, 0)
        kept = msgspec.json.decode(msgspec.json.encode(state), type=Visits)  # as between two batches
        assert told([*first, *visit(kept, WAY[cut:], FENCES, 0)]) == STORY


def test_what_comes_when_later_ones_were_judged_is_told_and_not_used():
    state = Visits()
    visit(state, WAY, FENCES, 0)
    assert told(visit(state, [fix(25, 100)], FENCES, 0)) == [(25, None, BEHIND, None)]
    assert state.inside == {}


def test_what_is_held_back_waits_for_something_newer():
    state = Visits()
    assert visit(state, [fix(0, 1)], FENCES, 100 * SECOND) == []
    assert [each.event for each in visit(state, [fix(100, 1)], FENCES, 100 * SECOND)] == [ENTER, ENTER]
    assert len(state.held) == 1
