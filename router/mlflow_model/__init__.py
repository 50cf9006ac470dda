"""The model that MLflow serves for a policy, texts in and an arm out: a plugin."""

from policies.tracking.run_log import MODEL_LOGGERS

from .form import log_text_model

MODEL_LOGGERS["text"] = log_text_model
