"""Arrays to allreduce: the recorded gradients of a real model, and a user's own files."""

from importlib.resources import as_file, files

import numpy as np
import numpy.typing as npt

from switchreduce.sim.data.rank_arrays import load_rank_arrays

__all__ = ["load_rank_arrays", "load_recorded_gradients"]


def load_recorded_gradients() -> list[npt.NDArray[np.float32]]:
    """Gradients of one training step of NCF on MovieLens, one flat float32 vector for each of four ranks.

    All have the same length, the model's number of parameters (961,665), and are mostly zero: see
    ``record_movielens.py`` for the model, the data and the order of the parameters.
    """
    with as_file(files("switchreduce.sim.data").joinpath("movielens_ncf.npz")) as path:
        return load_rank_arrays(path)
