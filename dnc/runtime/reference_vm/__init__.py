"""The reference VM: executes the encoded words in NumPy, one worker's instruction at a time.

In: a schedule and the words of a pool. Out: the pool after the launch. Workers are interleaved at
random; every read and write is checked: inside the pool, of words that were written, and ordered
by happens-before (the barriers) against every other worker's access. Guaranteed: a missing
barrier, a wrong address or a wrong list is an error that names worker, instruction and place.
"""

from dnc.runtime.reference_vm.machine import ReferenceVM
from dnc.runtime.reference_vm.memory import MachineError

__all__ = ["MachineError", "ReferenceVM"]
