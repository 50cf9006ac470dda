"""A policy's choice leaves the cores to the model's passes."""

import subprocess
import sys

# Two threads at least, whatever the machine; the processor time of a second in which nothing is
# asked for, after a product.
IDLE = """
import os, time
os.environ["OPENBLAS_NUM_THREADS"] = "2"
import numpy as np
from policies.products import product
rows, matrix = np.ones((1, 600), np.float32), np.ones((600, 3000), np.float32)
made = product(rows, matrix)
before = time.process_time()
time.sleep(0.05)
print(float(made[0, 0]), time.process_time() - before)
"""


def test_no_thread_waits_at_full_speed_after_a_product() -> None:
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
    value, spent = map(float, done.stdout.split())
    assert value == 600 and spent < 0.02
