"""One class a method, as users make them: `ipal.IPAL(gamma=0.7)`."""

from pathlib import Path

from ipal.estimator import files
from ipal.estimator.learner import Learner
from ipal.estimator.learner import learner_class as learner_class
from ipal.estimator.registry import METHODS


class IPAL(Learner, method=METHODS["ipal"]): ...


class OnlineIPAL(Learner, method=METHODS["ipal-online"]): ...


class Joint(Learner, method=METHODS["joint"]): ...


class Bare(Learner, method=METHODS["bare"]): ...


class EWC(Learner, method=METHODS["ewc"]): ...


class MAS(Learner, method=METHODS["mas"]): ...


class LwF(Learner, method=METHODS["lwf"]): ...


class GEM(Learner, method=METHODS["gem"]): ...


class TWP(Learner, method=METHODS["twp"]): ...


class ERGNN(Learner, method=METHODS["er-gnn"]): ...


class POLO(Learner, method=METHODS["polo"]): ...


class EFC(Learner, method=METHODS["efc"]): ...


class AdaGauss(Learner, method=METHODS["adagauss"]): ...


class DPCR(Learner, method=METHODS["dpcr"]): ...


class PR(Learner, method=METHODS["pr"]): ...


class PCL(Learner, method=METHODS["pcl"]): ...


class NCM(Learner, method=METHODS["ncm"]): ...


class SLDA(Learner, method=METHODS["slda"]): ...


class Analytic(Learner, method=METHODS["analytic"]): ...


def load(path: str | Path, *, device: str = "cpu") -> Learner:
    """A saved model of any method. Nothing is unpickled.

    Parameters
    ----------
    path : str or Path
        A file written by `Learner.save`.
    device : str, default="cpu"
        Where to compute.

    Returns
    -------
    Learner
    """
    model = files.load(path, device=device)
    return learner_class(type(model.method))._of(model)
