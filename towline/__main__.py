"""`python -m towline` is `towline`."""

from __future__ import annotations

from towline.cli import main

if __name__ == "__main__":
    main()
