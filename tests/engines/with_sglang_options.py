"""SGLang's own reading of a command line, for test_exported.py; run by a Python that has it.

    python with_sglang_options.py --model-path MODEL ...

Prints its options of speculative decoding as a JSON object.
"""

import argparse
import json

from sglang.srt.server_args import ServerArgs

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = vars(parser.parse_args())
print(json.dumps({name: each for name, each in found.items() if name.startswith("speculative_")}))
