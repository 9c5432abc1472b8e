"""The twelve rules of docs/design/003-cloud.md; each test here fails without the rule it is named after."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import servers
from chaos import Fault
from small_runs import SPEC, environment, record, run, whole

import lakepond as lp
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.pace import Backoff, TokenBucket, timeout_for
from lakepond.cloud.pusher import Pusher
from lakepond.cloud.store import Store
from lakepond.errors import CloudForked

S3_GCS_AZURE = pytest.mark.parametrize("server", ["moto", "gcs", "azurite"], indirect=True)


def a_lake(path: Path, commits: int = 3) -> Path:
    with lp.Replay.open(path, SPEC, capacity=200) as replay:
        run(replay, commits)
    return path


def pushed(pusher: Pusher, timeout: float = 60.0) -> lp.UploadStatus:
    pusher.push()
    status = pusher.wait(timeout)
    pusher.close(0.0)
    return status


def segments_of(lake: Path) -> list[str]:
    return sorted(file.name for file in (lake / "segments").iterdir())


# --- 1: only the commit says what there is -------------------------------------------------------


def test_1_what_no_commit_names_is_not_sent(name, tmp_path):
    lake = a_lake(tmp_path / "lake")
    named = segments_of(lake)
    for stray in ("12-ab.aside", f"{'0' * 40}.rows", "replay_buffer.pkl.gz"):
        (lake / "segments" / stray).write_bytes(b"of a killed process, or of nobody")
    assert lp.push(lake, f"memory://{name}").done
    there = Store(lp.Cloud(f"memory://{name}")).list("segments")
    assert sorted(each.removeprefix("segments/") for each in there) == named


# --- 2: our own retries, from the disk -----------------------------------------------------------


@S3_GCS_AZURE
@pytest.mark.parametrize("kind", ["reset", "lose answer"])
def test_2_a_broken_connection_is_tried_again(server, kind, chaos, name, tmp_path):
    lake, proxy = a_lake(tmp_path / "lake"), chaos(server)
    proxy.next(
        Fault(kind, b"PUT .*rows HTTP", 1000),
        Fault(kind, b"PUT .*steps HTTP", 100),
        Fault(kind, b"PUT .*json HTTP", 9),
    )
    assert lp.push(lake, server.cloud(name, proxy.port), timeout=60).done
    assert proxy.fired == 3
    with lp.pull(tmp_path / "there", server.cloud(name)) as there:
        whole(there, 120)


def test_2_every_try_reads_the_file_anew():
    class Greedy(MemoryBucket):
        tries = 0

        def put(self, name, data, *, create, timeout):
            self.tries += 1
            if self.tries < 3:
                raise lp.CloudUnreachable("the connection broke.")
            return super().put(name, data, create=create, timeout=timeout)

    reads = []
    store = Store(lp.Cloud("memory://greedy"), Greedy("greedy"))
    for _ in range(2):
        with pytest.raises(lp.CloudUnreachable):
            store.keep("x", lambda: reads.append(1) or b"bytes")
    store.keep("x", lambda: reads.append(1) or b"bytes")
    assert len(reads) == 3
    assert store.read("x") == b"bytes"


def test_2_waits_are_random_and_bounded_and_long_where_somebody_must_act():
    backoff = Backoff(cap=60.0)
    waits = [backoff.after(lp.CloudUnreachable("x")) for _ in range(2000)]  # a server that is away for a day
    assert max(waits) <= 60.0
    assert waits[0] <= 0.5
    assert len(set(waits)) == 2000
    assert backoff.after(lp.CloudRefused("x")) >= 30.0


# --- 3: "already exists" is no proof -------------------------------------------------------------


@pytest.mark.parametrize("kind", ["moto", "gcs", "azurite", "file"])
def test_3_wrong_bytes_under_the_right_name_are_put_right(request, kind, name, tmp_path):
    lake = a_lake(tmp_path / "lake")
    cloud = (
        lp.Cloud(f"file://{tmp_path}/cloud") if kind == "file" else request.getfixturevalue(kind).cloud(name)
    )
    poisoned = segments_of(lake)[0]
    size = (lake / "segments" / poisoned).stat().st_size
    Store(cloud).replace(f"segments/{poisoned}", bytes(size))
    assert lp.push(lake, cloud).done
    with lp.pull(tmp_path / "there", cloud) as there:
        whole(there, 120)


@S3_GCS_AZURE
def test_3_a_bit_flipped_on_the_way_is_noticed_and_sent_again(server, chaos, name, tmp_path):
    lake, proxy = a_lake(tmp_path / "lake"), chaos(server)
    proxy.next(Fault("flip", b"PUT .*rows HTTP", 2000), Fault("flip", b"PUT .*steps HTTP", 200))
    proxy.next(Fault("flip", b"PUT .*json HTTP", 50), Fault("flip", b"PUT .*json HTTP", 90))
    assert lp.push(lake, server.cloud(name, proxy.port), timeout=60).done
    assert proxy.fired == 4
    with lp.pull(tmp_path / "there", server.cloud(name)) as there:
        whole(there, 120)


def test_3_a_commit_that_arrived_changed_is_published_again(moto, chaos, name, tmp_path):
    lake, proxy = a_lake(tmp_path / "lake"), chaos(moto)
    proxy.next(Fault("flip", b"PUT .*00000[0-2].json HTTP", 50, times=4))  # the second try, too
    assert lp.push(lake, moto.cloud(name, proxy.port), timeout=60).done
    assert proxy.fired == 4
    with lp.pull(tmp_path / "there", moto.cloud(name)) as there:
        whole(there, 120)


def test_3_a_server_that_checks_refuses_a_flipped_bit(seaweed, chaos, name):
    proxy = chaos(seaweed)
    proxy.next(Fault("flip", b"PUT ", after=10_000))
    store = Store(seaweed.cloud(name, proxy.port))
    with pytest.raises(lp.CloudUnreachable, match="400"):
        store.keep("x", lambda: bytes(50_000))
    assert store.head("x") is None
    assert store.keep("x", lambda: bytes(50_000)) == 50_000


def test_3_a_bit_flipped_on_the_way_back_is_noticed_and_fetched_again(moto, chaos, name, tmp_path, caplog):
    assert lp.push(a_lake(tmp_path / "lake"), moto.cloud(name)).done
    proxy = chaos(moto)
    proxy.next(Fault("flip answer", b"GET /bucket/" + name.encode() + b"/segments", after=500))
    with lp.pull(tmp_path / "there", moto.cloud(name, proxy.port)) as there:
        whole(there, 120)
    assert proxy.fired == 1
    assert "is damaged" in caplog.text


def test_3_etags_that_only_look_like_md5_are_found_out(name):
    class Encrypted(MemoryBucket):  # a bucket with KMS: 32 hex digits that are no MD5
        def put(self, name, data, *, create, timeout):
            super().put(name, data, create=create, timeout=timeout)
            return "0" * 32

    bucket = Encrypted(name)
    store = Store(lp.Cloud(f"memory://{name}"), bucket)
    for k in range(3):
        store.keep(f"x{k}", lambda: b"bytes")
    assert store.server.bytes_sent == 15  # nothing was sent twice


# --- 4: LIST, then the commit --------------------------------------------------------------------


def test_4_what_a_server_acknowledged_and_lost_is_sent_again_before_the_commit(name, tmp_path):
    class Liar(MemoryBucket):
        lies, order = 2, ()

        def put(self, name, data, *, create, timeout):
            etag = super().put(name, data, create=create, timeout=timeout)
            if self.lies and ".rows" in name:
                self.lies -= 1
                self.delete(name)
            self.order += (name,)
            return etag

    lake, bucket = a_lake(tmp_path / "lake"), Liar(name)
    cloud = lp.Cloud(f"memory://{name}", retry_cap=0.1)
    assert pushed(Pusher(lake, cloud, store=Store(cloud, bucket))).done
    assert bucket.order[-3:] == tuple(f"commits/000000000{n}.json" for n in range(3))
    with lp.pull(tmp_path / "there", cloud) as there:
        whole(there, 120)


def test_4_a_reader_steps_back_to_the_last_whole_commit_and_says_so(name, tmp_path, caplog):
    lake, cloud = a_lake(tmp_path / "lake"), lp.Cloud(f"memory://{name}")
    assert lp.push(lake, cloud).done
    with lp.Lake.open(lake) as newest:
        Store(cloud).delete(f"segments/{newest.commit.segments[-1].name}")
    with lp.Replay.open(tmp_path / "there", capacity=200, cloud=cloud, pull="lazy") as replay:
        assert replay.stats().recorded == 80
        assert "skipping unreadable commit 2" in caplog.text
        run(replay, commits=1)
        assert replay.push(wait=True).pushed == 3  # not 2: that number is taken
    with lp.pull(tmp_path / "again", cloud) as there:
        whole(there, 120)


# --- 5: time-outs by size, a cap on bandwidth ----------------------------------------------------


def test_5_a_link_that_is_slow_but_alive_gets_the_time_it_needs(moto, chaos, name):
    proxy = chaos(moto)
    proxy.rate = 4e6
    cloud = moto.cloud(name, proxy.port, min_rate=1e6)
    data = np.random.default_rng(0).bytes(8_000_000)  # takes 2 s at this rate
    flat = Store(lp.Cloud(cloud.url, options=cloud.options, min_rate=1e12), least_timeout=0.5)
    with pytest.raises(lp.CloudUnreachable, match="in time"):
        flat.keep("x", lambda: data)
    assert Store(cloud, least_timeout=0.5).keep("y", lambda: data) == len(data)


def test_5_a_time_out_is_four_times_what_the_slowest_link_needs():
    assert timeout_for(0, 1e6) == 60.0
    assert timeout_for(64_000_000, 1e6) >= 256.0
    assert timeout_for(5_000_000_000, 1e6) >= 20_000.0
    assert len({timeout_for(size, 1e6) for size in range(0, 100_000_000, 1000)}) < 6  # few clients


def test_5_the_bucket_lets_through_what_the_cap_allows():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    bucket = TokenBucket(10e6, clock=lambda: now[0], sleep=sleep)
    for _ in range(12):
        bucket.take(8_000_000)
    assert 10e6 * sum(slept) == pytest.approx(11 * 8_000_000, rel=0.15)


def test_5_the_cap_is_shared_by_all_workers_of_a_push(name, tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(TokenBucket, "take", lambda self, size: taken.append((id(self), size)))
    lake = a_lake(tmp_path / "lake")
    assert lp.push(lake, lp.Cloud(f"memory://{name}", max_rate=1e6)).done
    assert len({bucket for bucket, _ in taken}) == 1
    assert sum(size for _, size in taken) >= sum(f.stat().st_size for f in (lake / "segments").iterdir())


# --- 6: exit never hangs -------------------------------------------------------------------------


def test_6_a_process_ends_though_an_upload_is_stalled(moto, chaos, name, tmp_path):
    proxy = chaos(moto)
    proxy.next(Fault("stall", b"PUT .*rows HTTP", after=100, times=99))
    code = f"""
        import lakepond as lp
        from lakepond.flow.lake_and_cloud import CloudCopy
        from small_runs import SPEC, run
        CloudCopy.close.__defaults__ = (2.0,)  # instead of 30 s
        cloud = lp.Cloud({moto.url(name)!r}, options={moto.options(proxy.port)!r})
        replay = lp.Replay.open({str(tmp_path / "lake")!r}, SPEC, capacity=100, cloud=cloud)
        run(replay, commits=2)
        replay.push()
        status = replay.wait_for_uploads(timeout=0.5)
        assert not status.done and status.pending, status
        print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,  # the stalled requests would take 60 s, and be tried again
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ended\n"


def test_6_every_thread_of_an_upload_is_a_daemon(moto, chaos, name, tmp_path):
    proxy = chaos(moto)
    proxy.next(Fault("stall", b"PUT .*rows HTTP", after=100, times=99))
    pusher = Pusher(a_lake(tmp_path / "lake"), moto.cloud(name, proxy.port))
    pusher.push()
    assert not pusher.wait(timeout=0.3).done
    mine = [thread for thread in threading.enumerate() if thread.name.startswith("lakepond-")]
    assert any("upload" in thread.name for thread in mine)
    assert all(thread.daemon for thread in mine if "upload" in thread.name or "push" in thread.name)
    pusher.close(0.0)


# --- 7: the disk is the queue; a segment leaves only after it was verified: see test_budget.py ---


# --- 8: loud, never fatal, no secrets ------------------------------------------------------------


def test_8_training_goes_on_without_the_cloud_and_the_backlog_is_sent_later(
    moto, chaos, name, tmp_path, caplog
):
    proxy = chaos(moto)
    proxy.dead = True
    cloud = moto.cloud(name, proxy.port)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=200, cloud=cloud) as replay:
        for _ in range(3):
            run(replay, commits=1)
            replay.push()
            replay.sample(8, rng=np.random.default_rng(0))
        status = replay.wait_for_uploads(timeout=0.5)
        assert status.state == "waiting"
        assert status.pending >= 6
        assert status.pending_bytes > 0
        assert status.lag_seconds > 0
        assert "a request to s3://" in status.last_error
        assert "waiting to retry" in caplog.text
        assert str(status).startswith("waiting: ")
        proxy.dead = False
        status = replay.wait_for_uploads(timeout=60)
        assert status.done
        assert status.last_error is None
    with lp.pull(tmp_path / "there", moto.cloud(name)) as there:
        whole(there, 120)


def test_8_what_is_not_there_at_the_end_is_said_and_sent_by_the_next_run(moto, chaos, name, tmp_path, caplog):
    proxy = chaos(moto)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=200, cloud=moto.cloud(name, proxy.port)) as replay:
        run(replay, commits=1)
        assert replay.push(wait=True).done
        proxy.dead = True
        run(replay, commits=1)
    assert "are not in the cloud yet" in caplog.text
    before = len(moto.log())
    assert lp.push(tmp_path / "lake", moto.cloud(name)).uploaded == 3  # rows, steps, commit: the rest only
    sent = [path for method, path, _, status, _ in moto.log()[before:] if method == "PUT" and status == 200]
    assert len(sent) == 3


@pytest.mark.parametrize("kind", ["moto", "gcs", "azurite"])
def test_8_a_planted_key_appears_nowhere(request, kind, chaos, name, tmp_path, caplog):
    server = request.getfixturevalue(kind)
    proxy = chaos(server)
    secret = servers.Azurite.key if kind == "azurite" else servers.SECRET
    proxy.next(Fault("reset", b"PUT .*rows HTTP", after=10), Fault("flip", b"PUT .*steps HTTP", after=10))
    cloud = server.cloud(name, proxy.port)
    texts = [repr(cloud), str(cloud)]
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=200, cloud=cloud) as replay:
        run(replay, commits=2)
        replay.push(wait=True)
        proxy.dead = True
        run(replay, commits=1)
        replay.push()
        status = replay.wait_for_uploads(timeout=0.3)
        texts += [repr(status), str(status), repr(replay), repr(replay._cloud.store)]
        texts += [repr(vars(replay._cloud.pusher))]
        for thing in (replay._cloud.store, cloud):
            with pytest.raises(TypeError, match="not pickled") as caught:
                pickle.dumps(thing)
            texts.append(str(caught.value))
        with pytest.raises(lp.CloudUnreachable) as caught:
            Store(cloud).list()
        texts.append(repr(caught.value))
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes()
    for text in [*texts, caplog.text]:
        assert secret not in text


# --- 9: SIGTERM ----------------------------------------------------------------------------------

SPOT = """
    import signal, sys, time
    import lakepond as lp
    from lakepond.cloud import on_sigterm
    from small_runs import SPEC, record, run
    before = sys.argv[4]
    if before == "python":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    cloud = lp.Cloud(sys.argv[1], options=__import__("json").loads(sys.argv[2]), retry_cap=0.2)
    replay = lp.Replay.open(sys.argv[3], SPEC, capacity=1000, cloud=cloud)
    on_sigterm(replay, grace=float(sys.argv[5]))
    run(replay, commits=2)
    replay.push(wait=True)
    record(replay, 80, 100)  # in no commit yet
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("before", "code"), [("default", -signal.SIGTERM), ("python", 7)])
def test_9_sigterm_commits_pushes_and_ends_as_before(moto, name, tmp_path, before, code):
    with _spot_machine(moto, name, tmp_path / "lake", before, grace=30.0) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == code
    with lp.pull(tmp_path / "there", moto.cloud(name)) as there:
        whole(there, 100)
        assert there.commit.note == {"signal": "SIGTERM"}


def test_9_a_machine_with_no_grace_loses_nothing_that_was_pushed(moto, chaos, name, tmp_path):
    proxy = chaos(moto)
    with _spot_machine(moto, name, tmp_path / "lake", "default", grace=0.5, port=proxy.port) as process:
        proxy.next(Fault("stall", b"PUT ", times=99))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    with lp.pull(tmp_path / "there", moto.cloud(name)) as there:
        whole(there, 80)
    before = len(moto.log())
    assert lp.push(tmp_path / "lake", moto.cloud(name)).done  # the next start sends only the rest
    puts = [path for method, path, *_ in moto.log()[before:] if method == "PUT" and "/segments/" in path]
    assert len(puts) == 2
    with lp.pull(tmp_path / "again", moto.cloud(name)) as there:
        whole(there, 100)


def test_9_only_the_main_thread_may_ask_and_it_can_be_taken_back():
    from lakepond.cloud import on_sigterm

    before = signal.getsignal(signal.SIGTERM)
    undo = on_sigterm(lp.Replay(SPEC, 10))
    assert signal.getsignal(signal.SIGTERM) is not before
    undo()
    assert signal.getsignal(signal.SIGTERM) is before
    errors = []

    def elsewhere():
        try:
            on_sigterm(lp.Replay(SPEC, 10))
        except lp.SpecError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 1


def _spot_machine(server, name, lake, before, grace, port=None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [
            *[sys.executable, "-c", textwrap.dedent(SPOT), server.url(name)],
            *[json.dumps(server.options(port)), str(lake), before, str(grace)],
        ],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# --- 10: fork ------------------------------------------------------------------------------------


def test_10_a_forked_child_gets_a_clear_error_instead_of_hanging(moto, name, tmp_path):
    code = f"""
        import os, sys
        import lakepond as lp
        from lakepond.cloud.store import Store
        from lakepond.errors import CloudForked
        from small_runs import SPEC, run
        cloud = lp.Cloud({moto.url(name)!r}, options={moto.options()!r})
        replay = lp.Replay.open({str(tmp_path / "lake")!r}, SPEC, capacity=100, cloud=cloud)
        run(replay, commits=1)
        assert replay.push(wait=True).done
        child = os.fork()
        if not child:
            tries = [replay.push, Store(cloud).list, lambda: lp.pull({str(tmp_path / "x")!r}, cloud)]
            refused = 0
            for attempt in tries:
                try:
                    attempt()
                except CloudForked as error:
                    refused += "spawn" in str(error)
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        run(replay, commits=1)
        assert replay.push(wait=True).done  # the parent goes on
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


# --- 11: garbage collection: see test_gc.py ------------------------------------------------------


# --- 12: no credentials, no bucket, no network: one sentence, at once ----------------------------

NOBODY = {"HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("gs://bucket/run", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3://bucket/run", "AWS_ACCESS_KEY_ID"),
        ("az://bucket/run", "AZURE_STORAGE_CONNECTION_STRING"),
    ],
)
def test_12_without_credentials_one_sentence_says_what_to_set(url, says, tmp_path, monkeypatch, caplog):
    for variable in list(os.environ):
        if variable.startswith(("AWS_", "GOOGLE_", "AZURE_", "STORAGE_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("lakepond.cloud.credentials._made_by", lambda vendor: False)
    with pytest.raises(lp.CloudRefused, match=says):
        lp.pull(tmp_path / "lake", url)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=url) as replay:  # training goes on
        run(replay, commits=1)
        replay.push()
        status = replay.wait_for_uploads(timeout=0.2)
        assert says in status.last_error
        assert says in caplog.text
    with lp.Lake.open(tmp_path / "lake") as lake:
        whole(lake, 40)


def test_12_a_key_file_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(
        lp.CloudRefused, match="GOOGLE_APPLICATION_CREDENTIALS is not the path of a readable file"
    ):
        lp.pull(tmp_path / "lake", "gs://bucket/run")


def test_12_wrong_credentials_are_told_and_right_ones_send_the_backlog(seaweed, name, tmp_path):
    wrong = {**seaweed.options(), "secret_access_key": "wrong-secret-77aa"}
    with pytest.raises(lp.CloudRefused, match="rejects these credentials") as caught:
        lp.pull(tmp_path / "lake", lp.Cloud(seaweed.url(name), options=wrong))
    assert "wrong-secret-77aa" not in str(caught.value)
    cloud = lp.Cloud(seaweed.url(name), options=wrong, retry_cap=0.2)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=cloud) as replay:
        run(replay, commits=1)
        replay.push()
        assert "rejects" in replay.wait_for_uploads(timeout=0.3).last_error
    assert lp.push(tmp_path / "lake", seaweed.cloud(name)).done


def test_12_a_bucket_that_is_not_there_and_a_server_that_is_not_there(moto, gcs, azurite, tmp_path):
    for server in (moto, gcs, azurite):
        missing = server.url("x").replace("bucket", "no-such-bucket")
        with pytest.raises(lp.CloudNotFound, match=r"the bucket .* does not exist"):
            lp.pull(tmp_path / "lake", lp.Cloud(missing, options=server.options()))
        away = lp.Cloud(server.url("x"), options=server.options(servers.free_ports(1)[0]))
        with pytest.raises(lp.CloudUnreachable, match="connection refused"):
            lp.pull(tmp_path / "lake", away)


def test_12_a_server_that_says_nothing_is_not_waited_for(moto, chaos, name, tmp_path, caplog):
    proxy = chaos(moto)
    proxy.next(Fault("stall", b"GET ", times=99))
    proxy.next(Fault("stall", b"PUT ", times=99))
    cloud = moto.cloud(name, proxy.port)
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=100, cloud=cloud) as replay:
        record(replay, 0, 10)
        assert "Training continues" in caplog.text
        proxy.close()  # or the end would wait, too
    assert replay.stats().recorded == 10


def test_12_the_client_is_missed_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr("lakepond.cloud.remote.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'lakepond\[cloud\]'"):
        lp.Replay.open(tmp_path / "lake", SPEC, capacity=10, cloud="gs://bucket/run")
    with lp.Replay.open(tmp_path / "lake", SPEC, capacity=10, cloud=f"file://{tmp_path}/cloud"):
        pass


def test_10_the_guard_is_about_processes_not_threads(moto, name):
    errors = []

    def elsewhere():
        try:
            Store(moto.cloud(name)).list()
        except CloudForked as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not errors
