"""MLflow runs this file to build the model ("models from code"), so that nothing is pickled."""

import mlflow.models

from router.text_model import TextModel

mlflow.models.set_model(TextModel())
