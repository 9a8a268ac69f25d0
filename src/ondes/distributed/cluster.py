"""A Dask cluster as an engine: workers may come, go and hang, and the scheduler may restart."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import dask
from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster

from ondes.distributed import shards
from ondes.distributed.engines import ClusterError, Priority, RoundLost
from ondes.nmf.estimator import OnlineISNMF

__all__ = ["Cluster", "connected"]

CONNECT_S = 3.0
LOOK_EVERY_S = 5.0
RESTART_S = 10.0
RETRIES = 2
USUAL_TIMES = 5  # a round may take so many times what the last ones took
FIRST_TIMES = 6  # and so many times the least patience where workers are still starting
LEAVE_TO_DRIVER = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"  # Ctrl-C
CONFIG = {
    # Who asks a dead worker for data gives up after so long, and has it computed again.
    "distributed.comm.timeouts.connect": f"{CONNECT_S:g}s",
    "distributed.scheduler.allowed-failures": 10,
    # Dask has workers give memory back at once, and by that keeps glibc from learning which sizes
    # come again. Frames come and go with every shard: asking for their pages each time costs more
    # than to read them.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**28,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}


@contextlib.contextmanager
def connected(client: Client | str | None, n_workers: int | None) -> Iterator[Client]:
    """The client given, one for the scheduler at an address, or one with a cluster of its own."""
    if isinstance(client, Client):
        yield client
        return
    with dask.config.set(CONFIG), ExitStack() as closed_at_the_end:
        if client is None:
            client = closed_at_the_end.enter_context(
                LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=n_workers,
                    threads_per_worker=1,
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                    preload=[LEAVE_TO_DRIVER],
                )
            )
        yield closed_at_the_end.enter_context(_connect(client))


def _connect(to: Any, **options: Any) -> Client:
    try:
        return Client(  # type: ignore[no-untyped-call]
            to, timeout=CONNECT_S, set_as_default=False, **options
        )
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"No scheduler answers at {to} within {CONNECT_S:g} s: start one there with "
            "`dask scheduler`, or give another address."
        ) from error


class _Signs(NamedTuple):
    last_seen: float
    tasks: set[str]


class Cluster:
    """Runs functions on the workers of a Dask cluster; a context manager.

    Parameters
    ----------
    client : distributed.Client
    patience : float
        Seconds without a sign after which a worker counts as hung. It gets more where rounds
        take long.
    wait : float
        Seconds to wait for workers where there are none, and for a scheduler that went away.
    """

    def __init__(self, client: Client, *, patience: float, wait: float) -> None:
        self._client, self._security = client, client.security
        self._address = str(client.scheduler.address)  # type: ignore[union-attr]
        self._least_patience, self._wait = patience, wait
        self._answer_times: deque[float] = deque(maxlen=8)
        self._seen_workers = time.monotonic()
        self._known: list[str] = []
        self._looked = -math.inf
        self._run, self._n_tasks = uuid.uuid4().hex, 0
        self._own = ExitStack()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        priority: Priority = Priority.READ,
        place: int | None = None,
    ) -> Future[Any]:
        """Promise of the function's value."""
        if self._client.status != "running":
            raise RoundLost("the scheduler went away")
        where: dict[str, Any] = {}
        if place is not None and (workers := self._known_workers()):
            where = {"workers": [workers[place % len(workers)]], "allow_other_workers": True}
        self._n_tasks += 1
        return self._client.submit(
            function,
            *arguments,
            key=f"ondes-{function.__name__}-{self._run}-{self._n_tasks}",
            priority=int(priority),
            retries=RETRIES,
            **where,
        )

    def results(self, promises: Sequence[Future[Any]]) -> list[Any]:
        """What was promised. Workers that hang meanwhile are restarted."""
        start = looked = time.monotonic()
        before: dict[str, _Signs] = {}
        while True:
            patience = self._patience
            try:
                values = self._gathered(promises, timeout=min(LOOK_EVERY_S, patience))
                break
            except (OSError, CancelledError, KilledWorker) as error:
                is_of_a_task = any(promise.status == "error" for promise in promises)
                if is_of_a_task and not isinstance(error, KilledWorker):
                    raise
                if not isinstance(error, TimeoutError):
                    raise RoundLost(str(error)) from error
            self._require_workers()
            if not before:
                looked, before = time.monotonic(), self._signs()
            elif time.monotonic() - looked >= patience:
                self._restart_hung(before, patience)
                before = {}
        if not before:
            self._answer_times.append(time.monotonic() - start)
        return values

    def _gathered(self, promises: Sequence[Future[Any]], timeout: float) -> list[Any]:
        async def gathered() -> Any:
            return await self._client.gather(list(promises), asynchronous=True)  # type: ignore[no-untyped-call]

        values: list[Any] = self._client.sync(  # type: ignore[no-untyped-call]
            gathered, callback_timeout=timeout
        )
        return values

    def recover(self) -> None:
        """Wait for a scheduler and for workers."""
        deadline, is_told = time.monotonic() + self._wait, False
        while True:
            if self._client.status == "running" and self._has_workers():
                return
            if self._client.status != "running" and not is_told:
                _warn(f"The scheduler at {self._address} went away; waiting for it.")
                is_told = True
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The scheduler at {self._address} went away and did not come back within "
                    f"{self._wait:g} s: start it again, and resume."
                )
            if self._client.status == "closed":
                self._connect_again()
            time.sleep(0.1)

    def check_workers(self, model: OnlineISNMF) -> None:
        """Wait for workers, and see that they are of one kind with the driver."""
        self.recover()
        ours = shards.introduce(model)
        deadline = time.monotonic() + self._wait
        for address, asked in self._introductions(model).items():
            try:
                theirs = asked.result(timeout=max(0.1, deadline - time.monotonic()))
            except (TimeoutError, CancelledError, KilledWorker):
                _warn(f"The worker at {address} does not answer; learning begins without it.")
                continue
            except ImportError as error:
                raise ClusterError(
                    f"The worker at {address} cannot load ondes: install ondes {ours.version} "
                    "there."
                ) from error
            if theirs.version != ours.version:
                raise ClusterError(
                    f"The worker at {address} has ondes {theirs.version}, and this is "
                    f"{ours.version}: install the same version there."
                )
            if theirs.bits != ours.bits:
                _warn(
                    f"The worker at {address} rounds otherwise than this process: the last bits "
                    "of the dictionary will depend on who does which work."
                )

    def _introductions(self, model: OnlineISNMF) -> dict[str, Future[Any]]:
        return {
            address: self._client.submit(
                shards.introduce, model, workers=[address], pure=False, retries=RETRIES
            )
            for address in self._workers()
        }

    def _has_workers(self) -> bool:
        """Whether workers are there or come in time; False where the scheduler is going away."""
        try:
            self._client.wait_for_workers(1, timeout=self._wait)
        except TimeoutError as error:
            raise self._no_workers() from error
        except OSError:
            return False
        return True

    def _connect_again(self) -> None:
        with contextlib.suppress(ClusterError):
            self._client = self._own.enter_context(_connect(self._address, security=self._security))

    @property
    def _patience(self) -> float:
        if not self._answer_times:
            return FIRST_TIMES * self._least_patience
        return max(self._least_patience, USUAL_TIMES * max(self._answer_times))

    def _workers(self) -> dict[str, Any]:
        """What the scheduler knows of each worker, by address."""
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _known_workers(self) -> list[str]:
        """Their addresses, as they were some seconds ago."""
        if time.monotonic() - self._looked > LOOK_EVERY_S:
            self._known, self._looked = sorted(self._workers()), time.monotonic()
        return self._known

    def _signs(self) -> dict[str, _Signs]:
        """By worker, when it was last heard of and what it has to do for us."""
        try:
            tasks = self._client.processing()  # type: ignore[no-untyped-call]
        except OSError as error:
            raise RoundLost(str(error)) from error
        return {
            address: _Signs(
                worker["last_seen"],
                {key for key in tasks.get(address, ()) if self._run in str(key)},
            )
            for address, worker in self._workers().items()
        }

    def _require_workers(self) -> None:
        if self._workers():
            self._seen_workers = time.monotonic()
        elif time.monotonic() - self._seen_workers > self._wait:
            raise self._no_workers()

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"The scheduler at {self._address} has had no workers for {self._wait:g} s: start "
            f"some with `dask worker {self._address} --nthreads 1`."
        )

    def _restart_hung(self, before: dict[str, _Signs], patience: float) -> None:
        """Restart the workers that gave no sign, or else those that finished nothing."""
        pairs = {at: (before[at], now) for at, now in self._signs().items() if at in before}
        silent = [at for at, (then, now) in pairs.items() if now.last_seen == then.last_seen]
        stuck = [at for at, (then, now) in pairs.items() if then.tasks and then.tasks <= now.tasks]
        hung = silent or stuck
        for address in hung:
            _warn(
                f"The worker at {address} has done nothing for {patience:.0f} s: it is restarted, "
                "and its work done again."
            )
        if hung:
            self._client.restart_workers(hung, timeout=RESTART_S, raise_for_error=False)
            self._answer_times.clear()  # new workers have all to load again


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
