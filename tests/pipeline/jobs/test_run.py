"""The whole pipeline in a real session: the books balance whatever happens (PL-04)."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from polybus.errors import UsageError
from polybus.pipeline.jobs.compaction import compact, mergeable
from polybus.pipeline.jobs.run import PipelineFailed, run_continuously, run_once
from polybus.pipeline.lake import Lake, NoSuchTable
from polybus.pipeline.schemas import KINDS, TABLES
from polybus.pipeline.settings import Events, Settings
from tests.pipeline.jobs.feed import PLAN, Feed

pytestmark = pytest.mark.timeout(600)  # a Spark job a batch; the machine may be busy


@pytest.fixture(scope="module")
def filled(spark, tmp_path_factory):
    """A pipeline that ran twice: on the first half of the messages, then on the rest."""
    feed = Feed(tmp_path_factory.mktemp("filled"), parts=4)
    feed.write(2)
    run_once(spark, feed.settings())
    feed.write()
    return feed, run_once(spark, feed.settings())


def copied(feed: Feed, folder: Path) -> Path:
    """Its tables and checkpoints, elsewhere: what Spark notes of files it has read are whole paths."""
    before, after = feed.folder / "lake", folder / "lake"
    shutil.copytree(before, after)
    for log in (after / "checkpoints/geofences/sources/0").iterdir():
        if log.name.startswith("."):
            log.unlink()  # a checksum
        else:
            log.write_text(log.read_text().replace(str(before), str(after)))
    return after


def check_books(lake: Lake, feed: Feed) -> None:
    """Published = bronze = silver + rejected + duplicates (+ late), by what the tables have."""
    records, rejected, double = feed.expected()
    assert lake.read("messages").count() == lake.read("messages").distinct().count() == len(feed.sent)
    kept = Counter(
        (row["truck"], row["id"]) for kind in KINDS for row in lake.read(kind).select("truck", "id").collect()
    )
    assert kept == Counter(records)
    assert lake.read("rejected").count() == rejected
    assert lake.read("duplicates").count() == double
    assert lake.read("late").count() == 0
    assert lake.read("ledger").count() == len(feed.sent)
    books = lake.books("messages").values()
    assert sum(book["rows"] for book in books) == len(feed.sent)
    assert sum(book["fates"]["kept"] for book in books) == len(records)


def test_a_second_start_goes_on_where_the_first_stopped(filled):
    feed, lake = filled
    check_books(lake, feed)
    assert len(lake.books("messages")) == 4


def test_every_table_has_the_columns_it_says(filled):
    _, lake = filled
    for name, table in TABLES.items():
        assert lake.read(name).schema.names == table.schema.names, name


def test_gold_adds_up_to_bronze(filled):
    feed, lake = filled
    size = sum(len(each.payload) for each in feed.sent)
    traffic = (
        lake.read("traffic_by_type")
        .groupBy()
        .sum("delivered_bytes", "repeated_bytes", "protocol_bytes", "messages")
    )
    delivered, repeated, protocol, messages = traffic.first()
    assert messages == len(feed.sent)
    assert delivered + repeated == size
    minutes = lake.read("client_traffic").groupBy().sum("payload_bytes", "protocol_bytes").first()
    assert tuple(minutes) == (size, protocol)
    # Rejected ones of topics that are no truck's are nobody's.
    assert lake.read("cap_use").groupBy().sum("used_bytes").first()[0] == size + protocol
    assert lake.read("truck_days").select("truck").distinct().count() == 3


def test_geofence_events_tell_a_way_that_can_be_driven(filled):
    _, lake = filled
    rows = lake.read("geofence_events").where("event != 'behind'").orderBy("truck", "at").collect()
    assert rows
    inside = {}
    for row in rows:
        key = (row["truck"], row["geofence"])
        assert (row["event"] == "enter") == (key not in inside)
        if row["event"] == "enter":
            inside[key] = row["at"]
        else:
            assert row["stayed_s"] == pytest.approx((row["at"] - inside.pop(key)).total_seconds())


def test_a_batch_whose_silver_is_missing_is_made_from_bronze(spark, filled, tmp_path):
    """As if the process had ended after bronze; and after the books, before Spark's own commit."""
    feed, _ = filled
    lake_folder = copied(feed, tmp_path)
    (lake_folder / "books/messages/0000000003.json").unlink()
    (lake_folder / "books/messages/.0000000003.json.crc").unlink(missing_ok=True)
    shutil.rmtree(lake_folder / "silver/records/batch=3")
    (lake_folder / "silver/records/.writing-3").mkdir()  # half of it was there
    remove_last(lake_folder / "checkpoints/messages/commits")
    settings = feed.settings()
    lake = run_once(spark, msgspec.structs.replace(settings, folder=str(lake_folder)))
    check_books(lake, feed)
    assert not (lake_folder / "silver/records/.writing-3").exists()


def test_lost_checkpoints_lose_and_double_nothing(spark, filled, tmp_path):
    feed, before = filled
    lake_folder = copied(feed, tmp_path)
    shutil.rmtree(lake_folder / "checkpoints")
    lake = run_once(spark, msgspec.structs.replace(feed.settings(), folder=str(lake_folder)))
    check_books(lake, feed)
    assert geofence_events(lake) == geofence_events(before)


def test_a_batch_that_geofences_have_in_their_books_is_done_again_for_its_state(spark, filled, tmp_path):
    """As if the process had ended between the book and Spark's commit."""
    feed, before = filled
    lake_folder = copied(feed, tmp_path)
    remove_last(lake_folder / "checkpoints/geofences/commits")
    lake = run_once(spark, msgspec.structs.replace(feed.settings(), folder=str(lake_folder)))
    assert geofence_events(lake) == geofence_events(before)


def remove_last(log: Path) -> None:
    """The newest entry of one of Spark's logs."""
    last = max((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_a_checkpoint_that_is_older_than_the_tables_is_told_and_its_loss_costs_nothing(spark, tmp_path):
    """The number of a batch that was done comes again, with other rows."""
    feed = Feed(tmp_path, parts=3, plan=msgspec.structs.replace(PLAN, duration_s=600.0))
    feed.write(2)
    run_once(spark, feed.settings())
    for log in ("offsets", "commits", "sources/0"):
        remove_last(tmp_path / "lake/checkpoints/messages" / log)
    feed.write()
    (tmp_path / "in/0001.parquet").rename(tmp_path / "0001.parquet")  # the next one comes in its place
    with pytest.raises(
        PipelineFailed, match=r"batch 1 of messages is not what the tables have.*Delete that folder"
    ):
        run_once(spark, feed.settings())
    (tmp_path / "0001.parquet").rename(tmp_path / "in/0001.parquet")
    shutil.rmtree(tmp_path / "lake/checkpoints/messages")
    check_books(run_once(spark, feed.settings()), feed)


def test_bronze_that_is_lost_with_its_checkpoint_is_taken_in_again(spark, filled, tmp_path):
    feed, _ = filled
    lake_folder = copied(feed, tmp_path)
    shutil.rmtree(lake_folder / "bronze/messages")
    shutil.rmtree(lake_folder / "checkpoints/messages")
    lake = run_once(spark, msgspec.structs.replace(feed.settings(), folder=str(lake_folder)))
    assert lake.read("messages").count() == len(feed.sent)
    records, rejected, double = feed.expected()
    kept = [row for kind in KINDS for row in lake.read(kind).select("truck", "id").collect()]
    assert Counter(map(tuple, kept)) == Counter(records)
    assert lake.read("rejected").count() == 2 * rejected
    assert lake.read("duplicates").count() + lake.read("late").count() == 2 * double + len(records)


def test_a_source_that_is_begun_anew_is_not_taken_for_the_old_one(spark, tmp_path):
    """Its numbers are the same, its times are later."""
    feed = Feed(tmp_path, parts=1, plan=msgspec.structs.replace(PLAN, duration_s=600.0))
    feed.write()
    run_once(spark, feed.settings())
    anew = Feed(tmp_path / "anew", parts=1, plan=msgspec.structs.replace(PLAN, duration_s=1200.0, seed=8))
    anew.later_s = 1200
    anew.write()
    shutil.rmtree(tmp_path / "lake/checkpoints")
    settings = msgspec.structs.replace(anew.settings(), folder=str(tmp_path / "lake"))
    lake = run_once(spark, settings)
    assert lake.read("messages").count() == len(feed.sent) + len(anew.sent)


def geofence_events(lake: Lake) -> list[tuple[object, ...]]:
    rows = lake.read("geofence_events").select("truck", "at", "geofence", "event").collect()
    return sorted((tuple(row) for row in rows), key=str)


def test_tables_of_few_folders_are_the_same_tables(spark, filled, tmp_path):
    """All that is complete becomes one; then the geofences are made anew from that, and more comes."""
    feed, before = filled
    lake_folder = copied(feed, tmp_path)
    compact(Lake(spark, str(lake_folder)), fan_in=None)
    for table in ("bronze/messages", "silver/records"):
        assert [path.name for path in (lake_folder / table).glob("batch=*")] == ["batch=03"], table
    settings = msgspec.structs.replace(feed.settings(), folder=str(lake_folder))
    lake = run_once(spark, settings)
    check_books(lake, feed)
    assert geofence_events(lake) == geofence_events(before)
    shutil.rmtree(lake_folder / "checkpoints")
    lake = run_once(spark, settings)
    check_books(lake, feed)
    assert geofence_events(lake) == geofence_events(before)


def test_what_geofences_have_not_read_is_not_merged(spark, filled, tmp_path):
    """The notes of a batch of theirs that did not come to its end: it will read those files again."""
    feed, _ = filled
    lake_folder = copied(feed, tmp_path)
    lake = Lake(spark, str(lake_folder))
    assert len(mergeable(lake, "records")) == 4
    remove_last(lake_folder / "checkpoints/geofences/commits")
    unread = [folder.last for folder in lake.folders("records")[0] if folder not in mergeable(lake, "records")]
    assert unread
    assert 3 in unread
    shutil.rmtree(lake_folder / "checkpoints/geofences")
    assert len(mergeable(lake, "records")) == 4


def test_a_continuous_run_takes_what_comes_and_leaves_the_rest_to_the_next(spark, filled, tmp_path):
    """It begins when there is nothing yet, makes one folder of two on the way, and is stopped while there is
    something to do."""
    feed = Feed(tmp_path, parts=4)
    settings = msgspec.structs.replace(feed.settings(), trigger_s=0.1, refresh_s=1.0, merge_batches=2)
    books, events = tmp_path / "lake/books/messages", tmp_path / "lake/books/geofences"
    has_begun = False

    def is_wanted():
        nonlocal has_begun
        if not has_begun and (tmp_path / "lake/checkpoints/geofences/metadata").exists():
            feed.write(3)
            has_begun = True
        merged = list((tmp_path / "lake/silver/records").glob("batch=0?*"))
        return not (merged and len(list(books.glob("*.json"))) >= 2 and list(events.glob("*.json")))

    run_continuously(spark, settings, is_wanted)
    feed.write()
    lake = run_once(spark, settings)
    check_books(lake, feed)
    assert geofence_events(lake) == geofence_events(filled[1])
    assert len(lake.folders("messages")[0]) < len(lake.books("messages"))


def test_late_records_are_kept_aside_and_counted(spark, tmp_path):
    feed = Feed(tmp_path, parts=3, plan=msgspec.structs.replace(PLAN, seed=9))  # a long gap between two batches
    feed.write()
    lake = run_once(spark, feed.settings(late_after_s=60.0))
    late = lake.read("late").count()
    assert late > 0
    fates = Counter()
    for book in lake.books("messages").values():
        fates.update(book["fates"])
    assert fates["late"] == late
    assert fates.total() == len(feed.sent) == lake.read("ledger").count()


def test_a_truck_whose_clock_is_ahead_makes_nobody_late(spark, tmp_path):
    """Ten days, in the first batch; the records of the second are as they should be."""
    feed = Feed(tmp_path, parts=2, plan=msgspec.structs.replace(PLAN, duration_s=1200.0))
    first = next(each for each in feed.sent if each.topic.endswith("/vehicle") and b'"at":' in each.payload)
    record = json.loads(first.payload)
    ahead = json.dumps({**record, "id": "ahead", "at": record["at"] + 10 * 86_400_000}).encode()
    feed.sent.insert(0, first._replace(payload=ahead))
    feed._parts[0].insert(0, feed.sent[0])
    feed.write()
    check_books(run_once(spark, feed.settings()), feed)


def test_a_full_disk_fails_the_run_and_the_next_one_goes_on(spark, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        feed = Feed(tmp_path / "feed", parts=2)
        feed.write()
        settings = msgspec.structs.replace(feed.settings(), folder=str(place / "lake"))
        with pytest.raises(PipelineFailed, match="No space left"):
            run_once(spark, settings)
        subprocess.run(["mount", "-o", "remount,size=200m", str(place)], check=True)
        check_books(run_once(spark, settings), feed)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_nothing_to_read_says_what_is_missing(spark, tmp_path):
    with pytest.raises(UsageError, match=r"the configuration needs \[messages\]"):
        run_once(spark, Settings(folder=str(tmp_path)))


def test_a_table_that_is_not_there_names_those_that_are(spark, tmp_path):
    with pytest.raises(NoSuchTable, match="there is no table 'cap'; there are messages, events"):
        Lake(spark, str(tmp_path)).read("cap")


def test_events_become_a_log_and_requests(spark, tmp_path):
    def line(ts, event, **fields):
        return json.dumps({"ts": ts, "event": event, "level": "DEBUG", **fields}) + "\n"

    file = tmp_path / "events.jsonl"
    asked = {"client_id": "ann", "topic": "solve", "request": 1, "requester": "ann", "packet_id": 1}
    file.write_text(line("2026-05-04T23:59:59Z", "request received", **asked) + "rubbish\n")
    settings = Settings(folder=str(tmp_path / "lake"), events=Events(f"{file}*"))
    lake = run_once(spark, settings)
    (row,) = lake.read("requests").collect()
    assert row["outcome"] == "unfinished"
    # It ends on the next day, in the next file.
    file.rename(tmp_path / "events.jsonl.1")
    file.write_text(line("2026-05-05T00:00:01Z", "answer delivered", **asked, duration_s=2.0))
    lake = run_once(spark, settings)
    (row,) = lake.read("requests").collect()
    assert (str(row["day"]), row["outcome"], row["duration_s"]) == ("2026-05-04", "answered", 2.0)
    assert [tuple(row) for row in lake.read("request_outcomes").select("outcome", "requests").collect()] == [
        ("answered", 1)
    ]
    assert lake.read("rejected_events").select("reason").first()[0] == "not JSON"
    assert lake.read("log").count() == 2


def test_a_source_that_is_not_there_is_said_in_one_line(spark, tmp_path):
    feed = Feed(tmp_path, parts=1)
    shutil.rmtree(Path(feed.folder / "in"))
    settings = msgspec.structs.replace(
        feed.settings(), messages=msgspec.structs.replace(feed.settings().messages, format="nothing")
    )
    with pytest.raises(UsageError, match="there is no source 'nothing'"):
        run_once(spark, settings)
