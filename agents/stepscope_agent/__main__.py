from __future__ import annotations

import sys

from stepscope_agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
