"""Every claim about speed, each beside what it is compared with.

What a benchmark started it ends by SIGINT. A shell has its jobs in the background ignore that, and their
children inherit it: so it is heard again from here on.
"""

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
