"""llama.cpp's server; run in an environment that has `xllamacpp` and not this project.

python serve_xllamacpp.py MODEL PORT CONTEXT SLOTS: serves until it is killed. A slot holds CONTEXT
tokens.
"""

import sys
import time

import xllamacpp

model, port, context, slots = sys.argv[1], *map(int, sys.argv[2:])
params = xllamacpp.CommonParams()
params.model.path = model
params.hostnames, params.port = ["127.0.0.1"], port
params.n_ctx, params.n_parallel, params.warmup = context * slots, slots, False
params.kv_unified = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(10_000)
