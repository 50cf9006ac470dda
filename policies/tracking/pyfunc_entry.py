"""MLflow runs this file to build the model ("models from code"), so that nothing is pickled."""

import mlflow.models

from policies.tracking.pyfunc import PolicyModel

mlflow.models.set_model(PolicyModel())
