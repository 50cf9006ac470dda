"""A process that serves the toy engine, slowly: python serve_main.py DRAIN_S."""

import sys

from serve_toys import ToyPolicy, toy_engine

from decoders.common import plugins
from router.routing.router import Router
from router.serve.app import make_app
from router.serve.queue import FairQueue
from router.serve.scheduler import DEFAULT, Scheduler
from router.serve.server import bound, serve

plugins.load()
router = Router(toy_engine(pause_s=0.05), ToyPolicy())
scheduler = Scheduler({DEFAULT: router}, FairQueue(8))
serve(make_app(scheduler), scheduler, bound("127.0.0.1", 0), float(sys.argv[1]))
