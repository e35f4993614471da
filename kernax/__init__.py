from kernax.data import Data
from kernax.kernels import *
from kernax.model import Model, Conditioned, condition
from kernax.parameters import *
from kernax.posterior import *
from kernax.selection import *
from kernax.solvers import *
from kernax.fitting import *
from kernax import means
