"""A child that writes pages until it is killed, and says which datapoints were acknowledged.

Arguments: folder, bytes of a page, "flat" or "items". Every other datapoint has a structure of its own.
"""

import os
import sys
from pathlib import Path

from tdbg.pages.format.page_writer import PageWriter
from tests.pages.material import make_content, make_items


def main() -> None:
    folder, page_bytes, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    writer = PageWriter(folder, run="killed", page_bytes=page_bytes)
    large = ("large", "uint8", (3000,), 3000)
    layout = writer.plan_layout([large[:3]])
    for number in range(100_000):
        key = f"{os.getpid()}-{number}"
        if how == "flat":
            data = make_content(key, "large", 3000)
            seq = writer.add_flat(key, layout, data + bytes(layout.length - 3000), step=number)
        else:
            odd = ("odd", "uint8", (number % 7,), number % 7)
            seq = writer.add(key, make_items(key, (large, odd)), step=number)
        os.write(1, b"%d %s\n" % (seq, key.encode()))


if __name__ == "__main__":
    main()
