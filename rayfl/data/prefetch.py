"""Batches made ahead of the training thread, in threads: image decoders let go of the interpreter's lock.

All streams of a process share one ``Prefetcher``. Its threads live only while there is a batch to make, so a
round that breaks off leaves none behind, and what a batch holds depends on no thread.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Job(Future[T]):
    """A batch to make."""

    def __init__(self, make: Callable[[], T]) -> None:
        super().__init__()
        self.make = make

    def run(self) -> None:
        """Make it; the error, if there is one, goes to whoever takes the batch."""
        try:
            result = self.make()
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)


class Prefetcher:
    """Up to ``threads`` threads that make batches in the order in which they were asked for.

    At most ``max(2 * threads, 8)`` batches are made and not yet taken, whatever the number of streams. With 0
    threads each is made when it is taken. Streams are opened, read and closed by one thread.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.num_streams = 0
        """Open streams."""
        self._lock = threading.Lock()
        self._wanted: deque[Job[Any]] = deque()
        self._room = max(2 * threads, 8)
        self._workers = 0

    def stream(self, makers: Iterable[Callable[[], T]]) -> "Stream[T]":
        """What ``makers`` make, one after another; the first is begun now."""
        return Stream(self, makers)

    @property
    def depth(self) -> int:
        """Batches that a stream asks for ahead of the one in use: a lone stream keeps all threads at work."""
        return max(1, 2 * self.threads // self.num_streams) if self.threads else 0

    def request(self, make: Callable[[], T]) -> Job[T]:
        """Have it made as soon as a thread and room are free."""
        job = Job(make)
        if self.threads:
            with self._lock:
                self._wanted.append(job)
                self._hire()
        return job

    def take(self, job: Job[T]) -> T:
        """What the job makes: at once, here, where no thread has begun it. Raises what making it raised."""
        if job.cancel():
            return job.make()
        try:
            return job.result()
        finally:
            self._release()

    def drop(self, job: Job[Any]) -> None:
        """Nobody will take it. Waits for a thread that is at work on it."""
        if not job.cancel():
            job.exception()
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._room += 1
            self._hire()

    def _hire(self) -> None:
        if self._wanted and self._room and self._workers < self.threads:
            self._workers += 1
            threading.Thread(target=self._work, name="rayfl-prefetch").start()

    def _work(self) -> None:
        while job := self._next():
            job.run()

    def _next(self) -> Job[Any] | None:
        with self._lock:
            while self._wanted and self._room:
                job = self._wanted.popleft()
                if job.set_running_or_notify_cancel():
                    self._room -= 1
                    return job
            self._workers -= 1
            return None


class Stream(Iterator[T], Generic[T]):
    """The batches of one client in one round. Ends after the last one, after an error, and when closed."""

    def __init__(self, prefetcher: Prefetcher, makers: Iterable[Callable[[], T]]) -> None:
        self._prefetcher = prefetcher
        self._makers = iter(makers)
        self._jobs: deque[Job[T]] = deque()
        self._open = True
        prefetcher.num_streams += 1
        self._ask(1)
        if not self._jobs:
            self.close()

    def __next__(self) -> T:
        if self._open:
            self._ask(1 + self._prefetcher.depth)
        if not self._jobs:
            self.close()
            raise StopIteration
        try:
            return self._prefetcher.take(self._jobs.popleft())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ask for no more; what was made ahead is dropped. May be called again."""
        if self._open:
            self._open = False
            self._prefetcher.num_streams -= 1
            while self._jobs:
                self._prefetcher.drop(self._jobs.popleft())

    def _ask(self, count: int) -> None:
        """Have ``count`` batches on order, as far as there are so many."""
        while len(self._jobs) < count and (make := next(self._makers, None)):
            self._jobs.append(self._prefetcher.request(make))
