"""What a compiled program's text says about its traffic between devices."""

import re

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "f64": 8}
"""Bytes of an entry; smaller and rarer types do not travel here."""

_CALL = re.compile(
    r"= (?P<result>.+?) "
    r"(?P<kind>all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?\("
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


def _size(dtype: str, shape: str) -> int:
    size = SIZES[dtype]
    for length in shape.split(","):
        size *= int(length or 1)
    return size
