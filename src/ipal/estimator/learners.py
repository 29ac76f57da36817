"""One class a method, as users make them: `ipal.IPAL(gamma=0.7)`."""

from pathlib import Path

from ipal.closed_form import method as closed_form
from ipal.estimator import files
from ipal.estimator.learner import Learner
from ipal.estimator.learner import learner_class as learner_class
from ipal.methods import (
    adagauss,
    bare,
    dpcr,
    efc,
    ergnn,
    ewc,
    gem,
    ipal,
    ipal_online,
    joint,
    lwf,
    mas,
    ncm,
    pcl,
    polo,
    pr,
    slda,
    twp,
)


class IPAL(Learner, method=ipal.IPAL): ...


class OnlineIPAL(Learner, method=ipal_online.OnlineIPAL): ...


class Joint(Learner, method=joint.Joint): ...


class Bare(Learner, method=bare.Bare): ...


class EWC(Learner, method=ewc.EWC): ...


class MAS(Learner, method=mas.MAS): ...


class LwF(Learner, method=lwf.LwF): ...


class GEM(Learner, method=gem.GEM): ...


class TWP(Learner, method=twp.TWP): ...


class ERGNN(Learner, method=ergnn.ERGNN): ...


class POLO(Learner, method=polo.POLO): ...


class EFC(Learner, method=efc.EFC): ...


class AdaGauss(Learner, method=adagauss.AdaGauss): ...


class DPCR(Learner, method=dpcr.DPCR): ...


class PR(Learner, method=pr.PR): ...


class PCL(Learner, method=pcl.PCL): ...


class NCM(Learner, method=ncm.NCM): ...


class SLDA(Learner, method=slda.SLDA): ...


class Analytic(Learner, method=closed_form.Analytic): ...


def load(path: str | Path, *, device: str = "cpu") -> Learner:
    """A saved model of whichever method. Nothing is unpickled.

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
