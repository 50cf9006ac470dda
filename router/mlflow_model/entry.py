"""MLflow runs this file to build the model ("models from code"), so that nothing is pickled."""

import mlflow.models

from router.mlflow_model.model import TextModel

mlflow.models.set_model(TextModel())
