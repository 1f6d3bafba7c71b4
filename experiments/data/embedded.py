"""A corpus that every Python carries: the documentation of `help()`."""

from pydoc_data.topics import topics


def read() -> bytes:
    """CPython's help topics in alphabetical order, UTF-8.

    About half a megabyte of English and code, fewer than half of the 256 bytes among it. The text
    differs between Python's patch releases, which is why results carry its hash.

    >>> b"assignment" in read()
    True
    """
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()
