"""What a compiled program's text says about its traffic, in memory and between devices."""

import re

import jax

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
"""Bytes of an entry; smaller and rarer types do not travel here."""

_CALL = re.compile(
    r"= (?P<result>.+?) "
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?\("
)
_INSTRUCTION = re.compile(r"^ *(?:ROOT )?(%\S+) = (.+?) ([a-z][a-z\d-]*)\((.*)$", re.MULTILINE)
_NO_TRAFFIC = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("copy-start", "copy-done", "slice-start", "slice-done", "async-start", "async-done"),
    "custom-call",  # on a TPU, parts of a prefetched array seen as one
)
_ARRAY = re.compile(rf"\b({'|'.join(SIZES)})\[([\d,]*)\]")


def collectives(program: str) -> dict[str, int]:
    """Return the bytes that each kind of collective operation leaves on one device.

    A loop's body counts once, so that a program of many steps has the bytes of one. An operation
    that is started and awaited apart has its input in its result as well, which does not count.

    Args:
      program: `jax.stages.Compiled.as_text()`.

    Returns:
      Bytes by kind, without the kinds that the program does not have.

    >>> collectives('''
    ...   %a = f32[8,4]{1,0} all-gather(%x), dimensions={0}
    ...   %b = (f32[2]{0}, (f32[], bf16[3]{0})) all-reduce(%y, %z), to_apply=%add
    ...   %c = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), dimensions={0}
    ...   %d = f32[8,4]{1,0} all-gather-done(%c)''')
    {'all-gather': 256, 'all-reduce': 18}
    """
    total: dict[str, int] = {}
    for call in _CALL.finditer(program):
        sizes = [_size(*array) for array in _ARRAY.findall(call["result"])]
        if call["start"] and call["kind"] != "all-reduce":
            arrays = [size for size in sizes if size]
            sizes = arrays[len(arrays) // 2 :] if call["kind"] == "all-gather" else arrays[1:2]
        total[call["kind"]] = total.get(call["kind"], 0) + sum(sizes)
    return total


def traffic(program: str) -> tuple[int, int]:
    """Return the bytes that a program without loops reads and writes, and its number of kernels.

    Every instruction of the entry computation reads its operands and writes its results once.
    Prefetches into faster memory don't count, since what follows them reads the same array.

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
        sizes[name] = sum(_size(*array) for array in _ARRAY.findall(result))
        if opcode not in _NO_TRAFFIC:
            operands = re.findall(r"%[\w.-]+", rest.partition(")")[0])
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


def _size(dtype: str, shape: str) -> int:
    size = SIZES[dtype]
    for length in shape.split(","):
        size *= int(length or 1)
    return size
