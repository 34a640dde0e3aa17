"""Between the blocks: what happens to packets before, between and after the pipelines, as source text.

The order of decisions follows BMv2's targets/simple_switch/simple_switch.cpp: at the end of ingress clone,
resubmit, multicast, unicast or drop; at the end of egress clone, drop, deparse, recirculate.
"""

from __future__ import annotations

from switchreduce.sim.target.emit_statements import Emitter
from switchreduce.sim.target.frames import DATA, DATA_BYTES, FRAMES, LENGTHS, OFFSET, PORTS
from switchreduce.sim.target.layout import (
    CHECKSUM_ERROR,
    CLONE,
    CLONE_LIST,
    CONTROL_WORDS,
    ERROR,
    EXIT,
    INGRESS_LENGTH,
    LENGTH,
    RECIRCULATE,
    RESUBMIT,
    TRUNCATE,
    Layout,
)
from switchreduce.sim.target.native import SIGNED, UNSIGNED

MOST_PASSES = 32  # further passes through the pipeline that one frame may cause; BMv2 has no bound
# What `state` (int64) holds.
# For a call: frames and bytes that are out.
# From call to call: refused passes; the addresses of memory, packet header vectors, space for hashes and for
# recirculated packets, and the size of the latter; the longest frame that there is room for; bytes that a
# frame can grow by.
# For a packet: bytes recirculated, packets queued, the queue.
_FRAMES, _BYTES = range(2)
REFUSED, MEM, PHVS, BUF, LOOP, LOOP_BYTES, LONGEST, GROWTH, _LOOPED, _QUEUED = range(2, 12)
_QUEUE = 16
STATE_WORDS = _QUEUE + 8 * MOST_PASSES
# what `run` returns where it processes nothing
OUTSIDE = -1  # an incoming frame lies outside the data
NO_ROOM = -2  # an incoming frame is longer than LONGEST


def traffic_functions(emitter: Emitter, written: set[int], again: bool) -> list[list[str]]:
    """All functions that surround the blocks, `run` last.

    `written` are the words that egress and checksums write; `again` tells whether the program clones,
    resubmits or recirculates.
    """
    common = [
        *_support(emitter, written | _set_in_egress(emitter)),
        _ingress_pass(emitter),
        _egress_pass(emitter),
    ]
    return common + (_again_functions(emitter) if again else _once_functions(emitter))


def _set_in_egress(emitter: Emitter) -> set[int]:
    """Words that differ from replica to replica."""
    out = set(range(CONTROL_WORDS))
    names = (
        *(f"standard_metadata.{n}" for n in ("egress_port", "egress_spec", "packet_length", "instance_type")),
        *(f"intrinsic_metadata.{n}" for n in ("egress_rid", "egress_global_timestamp")),
        *_QUEUEING,
    )
    for name in names:
        f = emitter.standard(name)
        if f is not None:
            out.add(emitter.layout.address(f))
    return out


_QUEUEING = (
    "queueing_metadata.enq_timestamp",
    "queueing_metadata.enq_qdepth",
    "queueing_metadata.deq_timedelta",
    "queueing_metadata.deq_qdepth",
    "queueing_metadata.qid",
)


def _set(emitter: Emitter, name: str, value: str, phv: str = "phv") -> list[str]:
    """Sets a field that BMv2 itself sets, where the program has it."""
    f = emitter.standard(name)
    if f is None:
        return []
    return [f"    put({phv}, {emitter.layout.address(f)}, {value} & U({(1 << f.width) - 1:#x}))"]


def _get(emitter: Emitter, name: str) -> str:
    f = emitter.standard(name)
    return "U(0)" if f is None else f"get(phv, {emitter.layout.address(f)})"


def _ranges(words: set[int]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for w in sorted(words):
        if out and out[-1][0] + out[-1][1] == w:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((w, 1))
    return out


def _support(emitter: Emitter, written: set[int]) -> list[list[str]]:
    layout = emitter.layout
    clear = ["def clear_phv(phv):"]
    for at, n in layout.clear:
        clear += [f"    for i in range({at}, {at + n}): put(phv, i, U(0))"]
    save, restore, at = ["def save(phv, kept):"], ["def restore(phv, kept):"], 0
    for start, n in _ranges(written):
        save.append(f"    for i in range({n}): put(kept, {at} + i, get(phv, {start} + i))")
        restore.append(f"    for i in range({n}): put(phv, {start} + i, get(kept, {at} + i))")
        at += n
    return [clear, save, restore]


def _ingress_pass(emitter: Emitter) -> list[str]:
    """Parser to the end of ingress, on a phv whose metadata is set; returns where the payload starts."""
    lines = ["def ingress_pass(phv, mem, buf, inp, start, end):"]
    lines += [
        f"    put(phv, {ERROR}, U(0))",
        f"    put(phv, {CHECKSUM_ERROR}, U(0))",
        f"    put(phv, {EXIT}, U(0))",
    ]
    lines += ["    pay = parse(phv, mem, buf, inp, start, end)", "    verify(phv, buf, inp, pay, end)"]
    lines += _set(emitter, "standard_metadata.parser_error", f"get(phv, {ERROR})")
    lines += _set(emitter, "standard_metadata.checksum_error", f"get(phv, {CHECKSUM_ERROR})")
    return [*lines, "    ingress(phv, mem, buf)", "    return pay"]


def _egress_pass(emitter: Emitter) -> list[str]:
    """Up to the end of egress; the caller clones, drops, deparses."""
    lines = ["def egress_pass(phv, mem, buf, port, now, drop_port):", f"    put(phv, {EXIT}, U(0))"]
    lines += _set(emitter, "intrinsic_metadata.egress_global_timestamp", "now")
    lines += _set(emitter, "queueing_metadata.enq_timestamp", "now")  # packets never wait here
    for name in _QUEUEING[1:]:
        lines += _set(emitter, name, "U(0)")
    lines += _set(emitter, "standard_metadata.egress_port", "port")
    lines += _set(emitter, "standard_metadata.egress_spec", "(drop_port + U(1))")
    lines += _set(emitter, "standard_metadata.packet_length", f"get(phv, {LENGTH})")
    return [*lines, "    egress(phv, mem, buf)"]


def _begin(emitter: Emitter) -> list[str]:
    lines = ["def begin(phv, port, length, now):", "    clear_phv(phv)"]
    lines += [f"    put(phv, {LENGTH}, U(length))", f"    put(phv, {INGRESS_LENGTH}, U(length))"]
    lines += _set(emitter, "standard_metadata.ingress_port", "U(port)")
    lines += _set(emitter, "standard_metadata.packet_length", "U(length)")
    lines += _set(emitter, "intrinsic_metadata.ingress_global_timestamp", "now")
    return lines


_FINISH = f"""def finish(phv, buf, inp, pay, end, out, at):
    # checksums, headers and payload; returns the byte behind the frame
    if get(phv, {TRUNCATE}) != U(0):
        # get_data_size() counts what is left of the packet against the limit
        stop = pay + min(end - pay, int64(get(phv, {TRUNCATE})) - 1)
    else:
        stop = end
    update(phv, buf, inp, pay, stop)
    to = deparse(phv, out, at)
    n = end - pay
    full = n & -8
    for i in range(0, full, 8):
        out64(out, to + i, in64(inp, pay + i))
    for i in range(full, n):
        out8(out, to + i, in8(inp, pay + i))
    return to + n"""

_CUT = f"""def cut(phv, length, limit):
    # truncate() and a clone session's own limit
    if get(phv, {TRUNCATE}) != U(0):
        length = min(length, int64(get(phv, {TRUNCATE})) - 1)
    if limit > 0:
        length = min(length, limit)
    return length"""


def _run(layout: Layout, loop: str) -> list[str]:
    """def run: packets from `cursor` on while `out` has room for what one can become; returns how many.

    `incoming` and `outgoing` are addresses of what `frames.py` tells of a batch; one frame can become `most`.
    """
    return f"""def run(state, incoming, outgoing, cursor, count, most, now):
    mem = at64(state, {MEM})
    phvs = at64(state, {PHVS})
    buf = at64(state, {BUF})
    loop = at64(state, {LOOP})
    drop_port = peek(mem, {layout.drop_port})
    inp = at64(incoming, {DATA})
    offsets = at64(incoming, {OFFSET})
    lengths = at64(incoming, {LENGTHS})
    ports = at64(incoming, {PORTS})
    size = at64(incoming, {DATA_BYTES})
    out = at64(outgoing, {DATA})
    out_offsets = at64(outgoing, {OFFSET})
    out_lengths = at64(outgoing, {LENGTHS})
    out_ports = at64(outgoing, {PORTS})
    for k in range(cursor, count):
        start = at64(offsets, k)
        length = at64(lengths, k)
        if start < 0 or length < 0 or length > size - start:
            return {OUTSIDE}
        if length > at64(state, {LONGEST}):
            return {NO_ROOM}
    phv = phvs
    done = cursor
    while done < count:
        start = at64(offsets, done)
        length = at64(lengths, done)
        end = start + length
        if at64(state, {_FRAMES}) + most > at64(outgoing, {FRAMES}):
            break
        if at64(state, {_BYTES}) + most * (length + at64(state, {GROWTH})) > at64(outgoing, {DATA_BYTES}):
            break
        port = at64(ports, done)
        done += 1
        begin(phv, port, length, now)
{loop}
    return done - cursor""".splitlines()


# kinds of the parameters of `run`
RUN_PARAMETERS = (SIGNED,) * 6 + (UNSIGNED,)


def _once_functions(emitter: Emitter) -> list[list[str]]:
    """For programs without clone, resubmit and recirculate: every packet passes once."""
    layout = emitter.layout
    send = f"""def send({_SEND}, port, now, drop_port):
    egress_pass(phv, mem, buf, U(port), now, drop_port)
    if {_get(emitter, "standard_metadata.egress_spec")} == drop_port:
        return
    at = at64(state, {_BYTES})
    length = cut(phv, finish(phv, buf, inp, pay, end, out, at) - at, 0)
    k = at64(state, {_FRAMES})
    set64(out_offsets, k, at)
    set64(out_lengths, k, length)
    set64(out_ports, k, port)
    set64(state, {_FRAMES}, k + 1)
    set64(state, {_BYTES}, at + length)"""
    to_port = f"send({_SEND}, int64(spec), now, drop_port)"
    normal = _set(emitter, "standard_metadata.instance_type", "U(0)")
    if emitter.standard("intrinsic_metadata.mcast_grp") is not None:
        lines: list[str] = [
            f"group = {_get(emitter, 'intrinsic_metadata.mcast_grp')}",
            "if group != U(0):",
            f"    word = peek(mem, {layout.groups} + int64(group))",
            f"    multicast({_SEND}, phvs + {8 * emitter.phv_words}, word, now, drop_port)",
            "    continue",
        ]
    else:
        lines = []
    lines += [f"spec = {_get(emitter, 'standard_metadata.egress_spec')}", "if spec != drop_port:"]
    lines += [*normal, f"    {to_port}"]
    loop = ["pay = ingress_pass(phv, mem, buf, inp, start, end)", *lines]
    functions = [_begin(emitter), _FINISH.splitlines(), _CUT.splitlines(), send.splitlines()]
    if emitter.standard("intrinsic_metadata.mcast_grp") is not None:
        functions.append(_multicast(emitter))
    return [*functions, _run(layout, "\n".join("        " + line for line in loop))]


_SEND = "phv, mem, buf, inp, pay, end, out, out_offsets, out_lengths, out_ports, state"


def _multicast(emitter: Emitter) -> list[str]:
    """A group's word holds where its replicas start, 32 bits, and how many they are, 32 bits."""
    lines = [
        f"def multicast({_SEND}, kept, word, now, drop_port):",
        "    n = int64(word & U(0xffffffff))",
        f"    first = {emitter.layout.replicas} + int64(word >> U(32))",
        *_set(emitter, "standard_metadata.instance_type", "U(5)"),
        *[f"    put(phv, {w}, U(0))" for w in (TRUNCATE, RESUBMIT, RECIRCULATE, CLONE, CLONE_LIST)],
        "    if n > 1:",
        "        save(phv, kept)",
        "    for r in range(n):",
        "        if r:",
        "            restore(phv, kept)",
        "        replica = peek(mem, first + r)",
        *["    " + x for x in _set(emitter, "intrinsic_metadata.egress_rid", "replica")],
        f"        send({_SEND}, int64(replica >> U(32)), now, drop_port)",
    ]
    return lines


_AGAIN = f"{_SEND}, phvs, loop, source"
_SESSION_BITS = 0x7FFF
_WORK = 8  # int64 words of `state` for each waiting packet, from _QUEUE on
_KIND, _SOURCE, _START, _END, _PAY, _WORD = range(6)


def _again_functions(emitter: Emitter) -> list[list[str]]:
    """For programs in which a packet can pass several times.

    Waiting packets stand in a queue, each with a phv of its own behind the first two. Resubmitted and
    recirculated ones start again at the parser, egress clones at egress. Recirculated bytes lie in `loop`.
    """
    layout = emitter.layout
    phv_words = layout.phv_words
    row = f"phvs + {8 * emitter.phv_words} * (2 + k)"
    copy_list = ["def copy_list(to, phv, number):", "    pass"]
    for number, fields in emitter.program.field_lists.items():
        copy_list.append(f"    if number == U({number}):")
        copy_list += ["        pass"]
        for f in fields:
            at = layout.address(f)
            n = -(-f.width // 64)
            copy_list += [f"        for i in range({at}, {at + n}): put(to, i, get(phv, i))"]
    clear_metadata = ["def clear_metadata(phv):", "    pass"]
    for at, n in layout.metadata:
        clear_metadata += [f"    for i in range({at}, {at + n}): put(phv, i, U(0))"]
    push = f"""def push(state, kind, source, start, end, pay, word):
    # a place in the queue, or -1 where one frame has caused too many passes
    k = at64(state, {_QUEUED})
    if k == {MOST_PASSES}:
        set64(state, {REFUSED}, at64(state, {REFUSED}) + 1)
        return -1
    set64(state, {_QUEUED}, k + 1)
    at = {_QUEUE} + {_WORK} * k
    set64(state, at + {_KIND}, kind)
    set64(state, at + {_SOURCE}, source)
    set64(state, at + {_START}, start)
    set64(state, at + {_END}, end)
    set64(state, at + {_PAY}, pay)
    set64(state, at + {_WORD}, int64(word))
    return k"""
    restart = [
        "def restart(to, phv, number, length, ingress_length):",
        "    # a packet that will be parsed again: nothing of it is kept but the listed fields",
        "    clear_phv(to)",
        "    copy_list(to, phv, number)",
        *_set(emitter, "standard_metadata.packet_length", "length", "to"),
        f"    put(to, {LENGTH}, length)",
        f"    put(to, {INGRESS_LENGTH}, ingress_length)",
    ]
    egress_clone = [
        "def egress_clone(to, phv, number):",
        f"    for i in range({phv_words}): put(to, i, get(phv, i))",
        "    clear_metadata(to)",
        "    copy_list(to, phv, number)",
        *_set(emitter, "standard_metadata.instance_type", "U(2)", "to"),
        *[f"    put(to, {w}, U(0))" for w in (CLONE, CLONE_LIST, RESUBMIT, RECIRCULATE, TRUNCATE, EXIT)],
    ]
    ingress_clone = [
        "def ingress_clone(to, phv, mem, buf, inp, start, end, port, number, length):",
        "    # BMv2 parses the packet as it came in once more; only ingress_port is there to select on",
        "    clear_phv(to)",
        *_set(emitter, "standard_metadata.ingress_port", "U(port)", "to"),
        "    pay = parse(to, mem, buf, inp, start, end)",
        "    clear_metadata(to)",
        "    copy_list(to, phv, number)",
        *_set(emitter, "standard_metadata.instance_type", "U(1)", "to"),
        f"    put(to, {LENGTH}, length)",
        f"    put(to, {INGRESS_LENGTH}, get(phv, {INGRESS_LENGTH}))",
        "    return pay",
    ]
    spec = _get(emitter, "standard_metadata.egress_spec")
    send = f"""def send({_AGAIN}, port, now, drop_port, limit):
    egress_pass(phv, mem, buf, U(port), now, drop_port)
    if get(phv, {CLONE}) != U(0):
        word = peek(mem, {layout.sessions} + int64(get(phv, {CLONE}) & U({_SESSION_BITS})))
        number = get(phv, {CLONE_LIST})
        put(phv, {CLONE}, U(0))
        put(phv, {CLONE_LIST}, U(0))
        if word != U(0):
            k = push(state, 1, source, 0, end, pay, word)
            if k >= 0:
                egress_clone({row}, phv, number)
    if {spec} == drop_port:
        return
    at = at64(state, {_BYTES})
    stop = finish(phv, buf, inp, pay, end, out, at)
    number = get(phv, {RECIRCULATE})
    if number != U(0):
        put(phv, {RECIRCULATE}, U(0))
        n = stop - at
        start = at64(state, {_LOOPED})
        if start + n > at64(state, {LOOP_BYTES}):
            set64(state, {REFUSED}, at64(state, {REFUSED}) + 1)
            return
        k = push(state, 0, 1, start, start + n, 0, U(0))
        if k >= 0:
            for i in range(n):
                set_any8(loop, start + i, any8(out, at + i))
            set64(state, {_LOOPED}, start + n)
            to = {row}
            restart(to, phv, number, U(n), U(n))
            set_recirculated(to)
        return
    length = cut(phv, stop - at, limit)
    k = at64(state, {_FRAMES})
    set64(out_offsets, k, at)
    set64(out_lengths, k, length)
    set64(out_ports, k, port)
    set64(state, {_FRAMES}, k + 1)
    set64(state, {_BYTES}, at + length)"""
    each = [
        f"def send_each({_AGAIN}, first, n, now, drop_port, limit):",
        *[f"    put(phv, {w}, U(0))" for w in (TRUNCATE, RESUBMIT, RECIRCULATE, CLONE, CLONE_LIST)],
        f"    kept = phvs + {8 * emitter.phv_words}",
        "    if n > 1:",
        "        save(phv, kept)",
        "    for r in range(n):",
        "        if r:",
        "            restore(phv, kept)",
        f"        replica = peek(mem, {layout.replicas} + first + r)",
        *["    " + x for x in _set(emitter, "intrinsic_metadata.egress_rid", "replica")],
        f"        send({_AGAIN}, int64(replica >> U(32)), now, drop_port, limit)",
    ]
    session = f"""def send_session({_AGAIN}, word, now, drop_port):
    n = int64((word >> U(32)) & U(0xfff))
    send_each({_AGAIN}, int64(word >> U(44)), n, now, drop_port, int64(word & U(0xffffffff)))"""
    recirculated = [
        "def set_recirculated(phv):",
        "    pass",
        *_set(emitter, "standard_metadata.instance_type", "U(4)"),
    ]
    resubmitted = [
        "def set_resubmitted(phv):",
        "    pass",
        *_set(emitter, "standard_metadata.instance_type", "U(6)"),
    ]
    cloned = _AGAIN.replace("phv,", "to,", 1).replace("pay,", "cloned,", 1)
    passes = [
        f"def from_ingress({_AGAIN}, start, port, now, drop_port):",
        f"    length = get(phv, {LENGTH})",
        "    pay = ingress_pass(phv, mem, buf, inp, start, end)",
        f"    if get(phv, {CLONE}) != U(0):",
        f"        word = peek(mem, {layout.sessions} + int64(get(phv, {CLONE}) & U({_SESSION_BITS})))",
        f"        number = get(phv, {CLONE_LIST})",
        f"        put(phv, {CLONE}, U(0))",
        f"        put(phv, {CLONE_LIST}, U(0))",
        "        if word != U(0):",
        "            k = push(state, 2, source, start, end, 0, word)",
        "            if k >= 0:",
        f"                to = {row}",
        "                cloned = ingress_clone(to, phv, mem, buf, inp, start, end, port, number, length)",
        f"                send_session({cloned}, word, now, drop_port)",
        f"    number = get(phv, {RESUBMIT})",
        "    if number != U(0):",
        "        k = push(state, 0, source, start, end, 0, U(0))",
        "        if k >= 0:",
        f"            restart({row}, phv, number, length, get(phv, {INGRESS_LENGTH}))",
        f"            set_resubmitted({row})",
        "        return",
        f"    group = {_get(emitter, 'intrinsic_metadata.mcast_grp')}",
        "    if group != U(0):",
        f"        word = peek(mem, {layout.groups} + int64(group))",
        *["    " + x for x in _set(emitter, "standard_metadata.instance_type", "U(5)")],
        f"        send_each({_AGAIN}, int64(word >> U(32)), int64(word & U(0xffffffff)), now, drop_port, 0)",
        "        return",
        f"    spec = {spec}",
        "    if spec == drop_port:",
        "        return",
        *_set(emitter, "standard_metadata.instance_type", "U(0)"),
        f"    send({_AGAIN}, int64(spec), now, drop_port, 0)",
    ]
    queued = _AGAIN.replace("phv,", "row,", 1)
    loop = f"""set64(state, {_LOOPED}, 0)
set64(state, {_QUEUED}, 0)
source = 0
pay = 0
from_ingress({_AGAIN}, start, port, now, drop_port)
head = 0
while head < at64(state, {_QUEUED}):
    at = {_QUEUE} + {_WORK} * head
    row = phvs + {8 * emitter.phv_words} * (2 + head)
    head += 1
    source = at64(state, at + {_SOURCE})
    start = at64(state, at + {_START})
    end = at64(state, at + {_END})
    pay = at64(state, at + {_PAY})
    if at64(state, at + {_KIND}) == 0:
        if source == 0:
            from_ingress({queued}, start, port, now, drop_port)
        else:
            from_ingress({queued.replace("inp,", "loop,", 1)}, start, port, now, drop_port)
    elif at64(state, at + {_KIND}) == 1:
        word = U(at64(state, at + {_WORD}))
        if source == 0:
            send_session({queued}, word, now, drop_port)
        else:
            send_session({queued.replace("inp,", "loop,", 1)}, word, now, drop_port)"""
    run = _run(layout, "\n".join("        " + line for line in loop.splitlines()))
    fixed = [text.splitlines() for text in (_FINISH, _CUT, push, send, session)]
    functions = [_begin(emitter), *fixed[:2], copy_list, clear_metadata, fixed[2], restart, egress_clone]
    functions += [ingress_clone, recirculated, resubmitted, fixed[3], each, fixed[4], passes]
    return [*functions, run]
