"""Traffic in memory and between devices, read from a compiled program's text."""

import math
import re

import jax

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
"""Bytes of an entry; smaller and rarer types do not cross the network here."""

_COLLECTIVE = re.compile(
    r"(all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(-start)?"
)
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_INSTRUCTION = re.compile(r"^ *(?:ROOT )?(%\S+) = (.+?) ([a-z][a-z\d-]*)\((.*)$", re.MULTILINE)
_NAME = re.compile(r"%[\w.-]+")
_NO_TRAFFIC = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("copy-start", "copy-done", "slice-start", "slice-done", "async-start", "async-done"),
    "custom-call",  # on a TPU, parts of a prefetched array seen as one
)
_ARRAY = re.compile(rf"\b({'|'.join(SIZES)})\[([\d,]*)\]")


def collectives(program: str) -> dict[str, int]:
    """Return the bytes of what each kind of collective operation gathers or reduces.

    The bytes are those of the whole: an operation's operands or results, whichever are larger. A
    loop's body counts once, so that a program of many steps has the bytes of one, and so does an
    operation that a TPU spreads over several fusions: they name the same channel.

    Args:
      program: `jax.stages.Compiled.as_text()`.

    Returns:
      Bytes by kind, without the kinds that the program does not have.

    >>> collectives('''
    ...   %x = f32[2,4]{1,0} parameter(0)
    ...   %y = f32[8]{0} parameter(1)
    ...   %a = f32[8,4]{1,0} all-gather(%x), channel_id=1, dimensions={0}
    ...   %b = (f32[2,4]{1,0}, f32[8]{0}) all-reduce(%x, /*index=1*/%y), to_apply=%add
    ...   %c = ((f32[2,4]{1,0}), (f32[8,4]{1,0})) all-gather-start(%x), channel_id=2
    ...   %d = f32[8,4]{1,0} all-gather-done(%c)
    ...   %e = f32[8,4]{1,0} all-gather(%x), channel_id=1, dimensions={0}
    ...   %f = f32[2]{0} reduce-scatter(%y), channel_id=3''')
    {'all-gather': 256, 'all-reduce': 64, 'reduce-scatter': 32}
    """
    sizes: dict[str, int] = {}
    by_channel: dict[tuple[str, str], int] = {}
    for name, result, opcode, rest in _INSTRUCTION.findall(program):
        sizes[name] = _sizes(result)
        if call := _COLLECTIVE.fullmatch(opcode):
            kind, starts = call.groups()
            operands, _, attributes = rest.partition(")")
            inputs = sum(sizes[operand] for operand in _NAME.findall(operands))
            outputs = sizes[name] - (inputs if starts and kind != "all-reduce" else 0)
            channel = _CHANNEL.search(attributes)
            by_channel[kind, channel[1] if channel else name] = max(inputs, outputs)
    total: dict[str, int] = {}
    for (kind, _), size in by_channel.items():
        total[kind] = total.get(kind, 0) + size
    return total


def traffic(program: str) -> tuple[int, int]:
    """Return the bytes that a program without loops reads and writes, and its number of kernels.

    Every instruction of the entry computation reads its operands and writes its results once.
    Prefetches into faster memory don't count, since the next instruction reads the same array.

    Args:
      program: `jax.stages.Compiled.as_text()`.

    Returns:
      (bytes, kernels), where kernels are the fusions; what was not fused is arithmetic on scalars.

    >>> traffic('''
    ... ENTRY %main (x: f32[4]) -> f32[4] {
    ...   %x = f32[4]{0} parameter(0)
    ...   %y = f32[4]{0} fusion(%x), kind=kLoop, calls=%double
    ...   ROOT %z = f32[4]{0} fusion(%x, %y), kind=kLoop, calls=%add
    ... }''')
    (80, 2)
    """
    entry = program[program.index("\nENTRY ") :]
    sizes: dict[str, int] = {}
    total = kernels = 0
    for name, result, opcode, rest in _INSTRUCTION.findall(entry):
        sizes[name] = _sizes(result)
        if opcode not in _NO_TRAFFIC:
            operands = _NAME.findall(rest.partition(")")[0])
            moved = sizes[name] + sum(sizes[operand] for operand in operands)
            total, kernels = total + moved, kernels + (opcode == "fusion")
    return total, kernels


def peak_bytes(program: jax.stages.Compiled) -> int:
    """Return bytes of arguments, outputs and temporaries, with donated buffers counted once."""
    memory = program.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )


def _sizes(result: str) -> int:
    """Return the bytes of all arrays in the type of an instruction's result."""
    return sum(
        SIZES[dtype] * math.prod(int(length) for length in shape.split(",") if length)
        for dtype, shape in _ARRAY.findall(result)
    )
