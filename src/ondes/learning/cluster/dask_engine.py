"""A Dask cluster as an engine: workers may come and go, and the scheduler may restart."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import dask
from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster

from ondes.errors import ClusterError
from ondes.learning.cluster import shards
from ondes.learning.cluster.shards import Interrupted, Priority, RoundLost
from ondes.nmf.encoding import Compute

__all__ = ["DaskEngine", "connected"]

CONNECT_S = 3.0
POLL_S = 0.5
REFRESH_S = 5.0  # how old the list of workers may be
WAIT_S = 60.0  # for workers where there are none, and for a scheduler that went away
RESTART_S = 10.0
RETRIES = 2
# A round may take this long, or ten times as long as the slowest of the last ones: then the
# workers that still have tasks are restarted. Workers without a heartbeat are restarted by Dask.
ROUND_LIMIT_S, ROUND_LIMIT_FACTOR = 60.0, 10
IGNORE_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
CLOSE_HTTP = "def dask_setup(server): server.http_server.stop()"  # it has no key, unlike the rest
CONFIG = {
    # A worker that asks a dead one for data gives up after this long; then it is recomputed.
    "distributed.comm.timeouts.connect": f"{CONNECT_S:g}s",
    "distributed.scheduler.allowed-failures": 10,
    "distributed.scheduler.worker-ttl": "30s",
    # Dask makes workers return memory at once, which keeps glibc from adapting to the sizes that
    # recur. Frames come and go with every shard: mapping their pages anew costs more than reading.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**28,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}


@contextlib.contextmanager
def connected(cluster: Client | str, n_workers: int | None = None) -> Iterator[Client]:
    """The client given, one for the scheduler at an address, or one with a local cluster.

    Parameters
    ----------
    cluster : distributed.Client or str
        A client, the address of a scheduler, or ``"local"`` for processes on this machine, which
        end with the block. Only they can talk to each other: the keys are made for this run.
    n_workers : int, optional
        Local processes; as many as there are cores if not given.
    """
    if isinstance(cluster, Client):
        yield cluster
        return
    with dask.config.set(CONFIG), ExitStack() as stack:
        address: Any = cluster
        if cluster == "local":
            address = stack.enter_context(
                LocalCluster(  # type: ignore[no-untyped-call]
                    n_workers=n_workers,
                    threads_per_worker=1,
                    protocol="tls://",
                    security=True,
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False, "preload": [CLOSE_HTTP]},
                    silence_logs=logging.CRITICAL,
                    preload=[IGNORE_SIGINT, CLOSE_HTTP],  # Ctrl-C is for the driver
                )
            )
        yield stack.enter_context(_connect(address))


def _connect(address: Any, **options: Any) -> Client:
    try:
        return Client(  # type: ignore[no-untyped-call]
            address, timeout=CONNECT_S, set_as_default=False, **options
        )
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"No scheduler answers at {address} within {CONNECT_S:g} s: start one there with "
            "`dask scheduler`, or give another address."
        ) from error


class DaskEngine:
    """Runs functions on the workers of a Dask cluster; a context manager.

    Parameters
    ----------
    client : distributed.Client
    should_stop : callable, optional
        Asked while results are awaited.
    """

    def __init__(self, client: Client, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._client, self._security = client, client.security
        self._address = str(client.scheduler.address)  # type: ignore[union-attr]
        self._should_stop = should_stop
        self._round_times: deque[float] = deque(maxlen=8)
        self._had_workers = time.monotonic()
        self._known: list[str] = []
        self._refreshed = -math.inf
        self._run, self._n_tasks = uuid.uuid4().hex, 0
        self._own = ExitStack()

    def __enter__(self) -> DaskEngine:
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
        """A future of the function's value."""
        if self._client.status != "running":
            raise RoundLost("the scheduler no longer answers")
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

    def results(self, futures: Sequence[Future[Any]]) -> list[Any]:
        """Their values; workers that never finish are restarted meanwhile."""
        start = time.monotonic()
        limit = max(ROUND_LIMIT_S, ROUND_LIMIT_FACTOR * max(self._round_times, default=0.0))
        deadline = start + limit
        coming = self._gather(futures)
        try:
            while not concurrent.futures.wait([coming], POLL_S).done:
                if self._client.status == "closed":
                    raise RoundLost("the scheduler no longer answers")
                if self._should_stop():
                    raise Interrupted
                self._require_workers()
                if time.monotonic() > deadline:
                    self._restart_busy_workers(limit)
                    deadline = time.monotonic() + limit
            values = coming.result()
        except (OSError, CancelledError, KilledWorker) as error:
            is_of_a_task = any(future.status == "error" for future in futures)
            if is_of_a_task and not isinstance(error, KilledWorker):
                raise
            raise RoundLost(str(error)) from error
        finally:
            coming.cancel()
        self._round_times.append(time.monotonic() - start)
        return values

    def _gather(self, futures: Sequence[Future[Any]]) -> concurrent.futures.Future[list[Any]]:
        """Their values in time: frames may take longer than a poll to get here."""

        async def gathered() -> list[Any]:
            values: list[Any] = await self._client.gather(  # type: ignore[no-untyped-call]
                list(futures), asynchronous=True
            )
            return values

        loop = self._client.loop.asyncio_loop  # type: ignore[union-attr]
        return asyncio.run_coroutine_threadsafe(gathered(), loop)

    def recover(self) -> None:
        """Wait for a scheduler and for workers."""
        deadline, is_reported = time.monotonic() + WAIT_S, False
        while True:
            if self._client.status == "running" and self._has_workers():
                return
            if self._client.status != "running" and not is_reported:
                _warn(f"The scheduler at {self._address} no longer answers; waiting for it.")
                is_reported = True
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"The scheduler at {self._address} has not answered for {WAIT_S:g} s: start it "
                    "again, and resume."
                )
            if self._client.status == "closed":
                self._reconnect()
            time.sleep(0.1)

    def check_workers(self, compute: Compute) -> None:
        """Wait for workers, and check that they compute as the driver does."""
        self.recover()
        ours = shards.introduce(compute)
        deadline = time.monotonic() + WAIT_S
        asked = {
            address: self._client.submit(
                shards.introduce, compute, workers=[address], pure=False, retries=RETRIES
            )
            for address in self._workers()
        }
        for address, future in asked.items():
            try:
                theirs = self._answer(address, future, deadline)
            except (TimeoutError, CancelledError, KilledWorker):
                _warn(f"The worker at {address} does not answer; training begins without it.")
                continue
            except ImportError as error:
                raise ClusterError(
                    f"The worker at {address} cannot import ondes: install ondes {ours.version} "
                    "there."
                ) from error
            if theirs.version != ours.version:
                raise ClusterError(
                    f"The worker at {address} has ondes {theirs.version}, and this is "
                    f"{ours.version}: install the same version there."
                )
            if theirs.bits != ours.bits:
                _warn(
                    f"The worker at {address} rounds differently from this process: the last bits "
                    "of the dictionary will depend on which worker does what."
                )

    def _answer(self, address: str, future: Future[Any], deadline: float) -> Any:
        """What a worker computes; TimeoutError where it is late or lost."""
        while True:
            try:
                return future.result(timeout=POLL_S)
            except TimeoutError:
                if time.monotonic() > deadline or address not in self._workers():
                    raise

    def _has_workers(self) -> bool:
        """Whether workers are there or come in time; False where the scheduler is going away."""
        try:
            self._client.wait_for_workers(1, timeout=WAIT_S)
        except TimeoutError as error:
            raise self._no_workers() from error
        except OSError:
            return False
        return True

    def _reconnect(self) -> None:
        with contextlib.suppress(ClusterError):
            self._client = self._own.enter_context(_connect(self._address, security=self._security))

    def _workers(self) -> dict[str, Any]:
        """What the scheduler knows of each worker, by address."""
        workers: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return workers

    def _known_workers(self) -> list[str]:
        """Their addresses, at most some seconds old."""
        if time.monotonic() - self._refreshed > REFRESH_S:
            self._known, self._refreshed = sorted(self._workers()), time.monotonic()
        return self._known

    def _require_workers(self) -> None:
        if self._workers():
            self._had_workers = time.monotonic()
        elif time.monotonic() - self._had_workers > WAIT_S:
            raise self._no_workers()

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"The scheduler at {self._address} has had no workers for {WAIT_S:g} s: start "
            f"some with `dask worker {self._address} --nthreads 1`."
        )

    def _restart_busy_workers(self, limit: float) -> None:
        """Restart the workers that still have tasks of this run."""
        try:
            tasks = self._client.processing()  # type: ignore[no-untyped-call]
        except OSError as error:
            raise RoundLost(str(error)) from error
        busy = [at for at, keys in tasks.items() if any(self._run in str(key) for key in keys)]
        for address in busy:
            _warn(
                f"The worker at {address} has not finished its part of a round within "
                f"{limit:.0f} s: it is restarted, and its work is done again."
            )
        if busy:
            self._client.restart_workers(busy, timeout=RESTART_S, raise_for_error=False)
            self._round_times.clear()  # new workers start slowly


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=2)
