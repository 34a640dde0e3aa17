"""Keeps one switch connected and programmed, and carries out writes to it in order, for an asyncio loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from switchreduce.controller.entities import TableEntry
from switchreduce.controller.entries import Stages
from switchreduce.controller.switch_client import (
    CHANNEL_OPTIONS,
    Callbacks,
    Superseded,
    SwitchConnection,
    WriteRefused,
)
from switchreduce.errors import SwitchError
from switchreduce.p4.builds import Build

PROBE_INTERVAL = 2.0  # seconds between looks whether the switch still answers
RETRY_WAIT = 1.0  # seconds to wait for a lost switch before the next pause
RETRY_PAUSES = (0.1, 0.2, 0.5, 1.0)  # seconds between attempts; the last one repeats

log = logging.getLogger(__name__)
T = TypeVar("T")


class Listener(Protocol):
    """Who hears of the switch. All are called in the loop's thread."""

    def switch_connected(self) -> None:
        """It runs the program and holds the base entries, nothing else."""

    def switch_lost(self, fault: str) -> None:
        """Its entries are gone, and so are all orders that were not done."""

    def packet_in(self, metadata: Mapping[str, int], payload: bytes) -> None: ...


@dataclass(frozen=True)
class Order:
    """A write. `stages` and `tolerant` are asked when its turn comes; then `done` or `refused` is called."""

    stages: Callable[[], Stages]
    tolerant: Callable[[], bool]
    done: Callable[[], None]
    refused: Callable[[str], None]


class SwitchLink:
    """The switch at `address`. Call `connect`, then let `run` run until it is cancelled, then `close`."""

    def __init__(
        self, address: str, device_id: int, build: Build, base: Callable[[], Stages], listener: Listener
    ) -> None:
        self.address = address
        self._device_id = device_id
        self._build = build
        self._base = base
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connection: SwitchConnection | None = None
        self._fault: asyncio.Future[SwitchError] = self._loop.create_future()
        self._orders: asyncio.Queue[Order] = asyncio.Queue()
        # apart, so that reads that wait for a slow switch do not hold up a job's entries
        self._writer = ThreadPoolExecutor(1, "switch-write")
        self._reader = ThreadPoolExecutor(2, "switch-read")

    async def connect(self, wait: float) -> None:
        """Connects and programs the switch.

        Raises:
            SwitchError: it does not answer within `wait` seconds, or refuses.
        """
        await self._wait_for_server(wait)
        self._fault = self._loop.create_future()
        connection = await self._run(
            self._writer, SwitchConnection, self.address, self._device_id, self._build, self._callbacks()
        )
        try:
            await self._run(self._writer, connection.push_pipeline)
            await self._run(self._writer, connection.write_stages, self._base())
        except BaseException:
            connection.close()
            raise
        # only now, as a switch without a program refuses what the probe reads, and would count as lost
        self._connection = connection
        self._listener.switch_connected()

    async def run(self) -> None:
        """Carries out orders and, whenever the switch is lost, connects again.

        Raises:
            Superseded: another controller took the switch over.
        """
        helpers = [asyncio.create_task(self._carry_out_orders()), asyncio.create_task(self._probe())]
        try:
            while True:
                fault = await self._fault
                self._drop(fault)
                if isinstance(fault, Superseded):
                    raise fault
                await self._reconnect()
        finally:
            for helper in helpers:
                helper.cancel()

    def submit(self, order: Order) -> None:
        self._orders.put_nowait(order)

    def fail(self, fault: SwitchError) -> None:
        """Gives the present connection up: the switch is programmed afresh."""
        if not self._fault.done():
            self._fault.set_result(fault)

    async def drain(self) -> None:
        """Returns when all orders so far are done."""
        await self._orders.join()

    async def read_table(self, table: str) -> list[TableEntry]:
        """As `SwitchConnection.read_table`."""
        return await self._run(self._reader, self._connected().read_table, table)

    async def read_counter(self, counter: str) -> dict[int, int]:
        """As `SwitchConnection.read_counter`."""
        return await self._run(self._reader, self._connected().read_counter, counter)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_server(self, wait: float) -> None:
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            try:
                await asyncio.wait_for(channel.channel_ready(), wait)
            except asyncio.TimeoutError:
                raise SwitchError(
                    f"no switch answers at {self.address} (waited {wait:g} s): start one with `switchreduce "
                    "switch`, or say with --switch where it is"
                ) from None

    async def _reconnect(self) -> None:
        attempt = 0
        while True:
            try:
                await self.connect(RETRY_WAIT)
                log.info("the switch at %s is back and runs %s", self.address, self._build.name)
                return
            except Superseded:
                raise
            except SwitchError as error:
                log.debug("%s", error)
            await asyncio.sleep(RETRY_PAUSES[min(attempt, len(RETRY_PAUSES) - 1)])
            attempt += 1

    async def _carry_out_orders(self) -> None:
        while True:
            order = await self._orders.get()
            try:
                await self._carry_out(order)
            finally:
                self._orders.task_done()

    async def _carry_out(self, order: Order) -> None:
        connection = self._connection
        if connection is None or self._fault.done():
            return
        try:
            await self._run(self._writer, connection.write_stages, order.stages(), order.tolerant())
        except WriteRefused as error:
            if connection is self._connection:
                order.refused(str(error))
        except SwitchError as error:
            if connection is self._connection:
                self.fail(error)
        else:
            if connection is self._connection:
                order.done()

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(PROBE_INTERVAL)
            connection = self._connection
            if connection is None:
                continue
            try:
                await self._run(self._reader, connection.read_counter, "SwitchIngress.drops")
            except SwitchError as error:
                if connection is self._connection:
                    self.fail(error)

    def _drop(self, fault: SwitchError) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        while not self._orders.empty():
            self._orders.get_nowait()
            self._orders.task_done()
        self._listener.switch_lost(str(fault))

    def _connected(self) -> SwitchConnection:
        if self._connection is None:
            raise SwitchError(f"the switch at {self.address} is not connected")
        return self._connection

    def _callbacks(self) -> Callbacks:
        fault = self._fault

        def lost(error: SwitchError) -> None:
            if not fault.done():
                fault.set_result(error)

        return Callbacks(
            packet_in=lambda fields, payload: self._in_loop(self._listener.packet_in, fields, payload),
            lost=lambda error: self._in_loop(lost, error),
        )

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    async def _run(self, pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(pool, function, *arguments)
