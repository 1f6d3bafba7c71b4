"""A corpus that comes with every Python: the documentation of `help()`."""

from pydoc_data.topics import topics


def read() -> bytes:
    """Return CPython's help topics in alphabetical order, in UTF-8.

    This is about half a megabyte of English and code with fewer than half of the 256 byte values.
    The text differs between Python's patch releases, so results record its hash.

    >>> b"assignment" in read()
    True
    """
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()
