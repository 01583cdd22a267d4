"""`python -m faultinject` is the command `harness faults`."""

import sys

from faultinject.command import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:], "python -m faultinject"))
