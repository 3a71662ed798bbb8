"""Google's create_pretraining_data.py under TensorFlow 2, timed without TensorFlow's import.

    PYTHON google_bert.py CHECKOUT [the script's own options]

The script runs unchanged, except that `import tensorflow` gives it the version-1 interface.
"""

import json
import os
import runpy
import sys
import time

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
sys.modules["tensorflow"] = tf
checkout, *options = sys.argv[1:]
sys.path.insert(0, checkout)
sys.argv = ["create_pretraining_data.py", *options]
output = next(option.split("=", 1)[1] for option in options if option.startswith("--output_file="))
# Processor time of the imports; what is counted afterwards is added below.
started, aside = time.monotonic(), sum(os.times()[:4])
try:
    runpy.run_path(f"{checkout}/create_pretraining_data.py", run_name="__main__")
except SystemExit as end:
    if end.code:
        raise
seconds, finished = time.monotonic() - started, sum(os.times()[:4])
examples = sum(1 for _ in tf.python_io.tf_record_iterator(output))
aside += sum(os.times()[:4]) - finished
print(json.dumps({"seconds": seconds, "examples": examples, "cpu_aside": aside}))
