"""Signals while a trainer runs: the first is noted until a safe point, the second raises at once."""
# ruff: noqa: PT012 (what happens between a signal and its exception is what is tested)

import importlib
import os
import signal
import sys
import threading
import time
from typing import ClassVar

import pytest

from lakepond import stopping
from lakepond.rows import compiling
from lakepond.stopping import Terminated, check, deferring


def send(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("signum", "words"),
    [
        (signal.SIGINT, "stopping after this generation; press Ctrl-C again to stop now"),
        (signal.SIGTERM, "stopping after this generation; send SIGTERM again to stop now"),
        (signal.SIGHUP, "stopping after this generation; send SIGHUP again to stop now"),
    ],
)
def test_a_signal_raises_at_the_next_check_and_not_before(signum, words, capfd):
    reached = []
    with pytest.raises(KeyboardInterrupt) as stopped, deferring("generation"):
        check()
        send(signum)
        reached.append("after the signal")
        check()
        reached.append("after the check")
    assert reached == ["after the signal"]
    assert words in capfd.readouterr().err
    if signum == signal.SIGINT:
        assert type(stopped.value) is KeyboardInterrupt
    else:
        assert isinstance(stopped.value, Terminated)
        assert stopped.value.signum == signum


def test_a_second_signal_raises_at_once():
    reached = []
    with pytest.raises(KeyboardInterrupt), deferring("generation"):
        send(signal.SIGTERM)
        reached.append("after the first")
        send(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]


def test_a_second_signal_whose_exception_is_lost_still_raises_at_the_check():
    with pytest.raises(Terminated), deferring("generation"):
        send(signal.SIGTERM)
        with pytest.raises(Terminated):  # as a JAX callback does
            send(signal.SIGTERM)
        check()


def test_an_error_that_a_signal_was_turned_into_is_a_stop_that_names_it(caplog):
    with pytest.raises(Terminated) as stopped, deferring("generation"):
        send(signal.SIGTERM)
        raise RuntimeError("CpuCallback error")
    assert isinstance(stopped.value.__cause__, RuntimeError)
    assert "CpuCallback error" in caplog.text


def test_a_signal_that_no_check_has_seen_is_not_lost():
    with pytest.raises(Terminated), deferring("generation"):
        send(signal.SIGTERM)


def test_an_error_without_a_signal_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), deferring("generation"):
        1 / 0  # noqa: B018


def test_a_nested_use_and_a_decorated_function_leave_the_signal_to_the_outermost():
    @deferring("portion")
    def train():
        send(signal.SIGTERM)
        return "trained"

    reached = []
    with pytest.raises(Terminated), deferring("generation"):
        reached.append(train())
        check()
    assert reached == ["trained"]
    with pytest.raises(Terminated):
        train()


def test_a_handler_of_the_program_itself_and_an_ignored_signal_stay():
    seen = []
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with deferring("generation"):
            send(signal.SIGTERM)
            send(signal.SIGHUP)
            check()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    assert seen == ["SIGTERM"]


def test_in_another_thread_it_does_nothing():
    found = []

    def train():
        with deferring("generation"):
            found.append(signal.getsignal(signal.SIGTERM))
            check()

    thread = threading.Thread(target=train)
    with pytest.raises(Terminated), deferring("generation"):
        send(signal.SIGTERM)
        thread.start()
        thread.join()
        found.append("the main thread continues")
        check()
    assert found[1:] == ["the main thread continues"]


def test_a_signal_while_handlers_are_restored_leaves_none_behind(monkeypatch):
    """The second Ctrl-C arrives when Python's own handler for it is back and SIGTERM's is not."""
    restore, sent = signal.signal, []

    def signalled(number, handler):
        before = restore(number, handler)
        if handler is signal.default_int_handler and not sent:
            sent.append(number)
            send(signal.SIGINT)
        return before

    handlers = [signal.getsignal(number) for number in stopping.SIGNALS]
    with pytest.raises(KeyboardInterrupt), deferring("generation"):
        monkeypatch.setattr(signal, "signal", signalled)
    monkeypatch.undo()
    assert sent == [signal.SIGINT]
    assert stopping._deferred is None
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == handlers


def test_a_signal_ends_a_sleep():
    timer = threading.Timer(0.05, send, [signal.SIGTERM])
    timer.start()
    with pytest.raises(Terminated), deferring("generation"):
        stopping.sleep(3600)
    timer.join()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_whose_exception_python_drops_is_delivered_again(signum, capsys):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signum)

    with stopping.terminate_as_interrupt(), pytest.raises(KeyboardInterrupt):
        Finalized()
        time.sleep(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_error_that_a_signal_has_become_is_the_signal_again(signum):
    with pytest.raises(ImportError), stopping.terminate_as_interrupt():
        raise ImportError("an error without a signal stays one")
    with pytest.raises(KeyboardInterrupt) as stopped, stopping.terminate_as_interrupt():
        try:
            send(signum)
        except KeyboardInterrupt as error:
            raise ImportError("cannot import") from error
    assert isinstance(stopped.value.__cause__, ImportError)
    assert isinstance(stopped.value, Terminated) == (signum == signal.SIGTERM)


MODULE = """
import os, signal, time
os.kill(os.getpid(), signal.{name})
time.sleep(0.3)                        # while the signal is delivered again
{more}
finished = True
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_an_import_raises_after_it(signum, tmp_path, monkeypatch):
    name = f"imported_while_{signum.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(name=signum.name, more=""))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt) as stopped, stopping.terminate_as_interrupt():
        importlib.import_module(name)
        time.sleep(5)
    assert sys.modules[name].finished
    assert isinstance(stopped.value, Terminated) == (signum == signal.SIGTERM)


@pytest.mark.parametrize("library", ["numba.core.codegen", "llvmlite.binding.executionengine"])
def test_a_signal_while_numba_loads_code_raises_after_it(library):
    names = {"__name__": library}
    with pytest.raises(KeyboardInterrupt), stopping.terminate_as_interrupt():
        exec(MODULE.format(name="SIGINT", more=""), names)
        time.sleep(5)
    assert names["finished"]


def test_a_signal_raises_at_once_in_a_folder_that_is_called_numba():
    names = {"__name__": "numbers"}
    code = compile(MODULE.format(name="SIGINT", more=""), "/envs/numba/site-packages/numbers.py", "exec")
    with pytest.raises(KeyboardInterrupt), stopping.terminate_as_interrupt():
        exec(code, names)
    assert "finished" not in names


def test_a_program_of_its_own_is_not_interrupted_inside_of_numba():
    done = []

    class Function:
        overloads: ClassVar = {}

        def compile(self, types):
            send(signal.SIGINT)
            done.append(types)

    with pytest.raises(KeyboardInterrupt):
        compiling.compiled(Function(), 1.0)
    assert len(done) == 1


def test_a_second_signal_ends_an_import(tmp_path, monkeypatch):
    again = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    (tmp_path / "imported_long.py").write_text(MODULE.format(name="SIGINT", more=again))
    monkeypatch.syspath_prepend(tmp_path)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), stopping.terminate_as_interrupt():
        importlib.import_module("imported_long")
    assert time.monotonic() - began < 30


def test_a_trainer_inside_of_the_program_notes_signals_instead_of_raising():
    with pytest.raises(Terminated), stopping.terminate_as_interrupt(), deferring("generation"):
        send(signal.SIGTERM)
        check()
        raise AssertionError("check has raised")
