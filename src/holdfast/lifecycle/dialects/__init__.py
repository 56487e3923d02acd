"""The five vocabularies: a job and its history in the words of each seed document.

A dialect is a view. It never changes what is stored, and nothing that decides reads it.
"""

from holdfast.lifecycle.dialects.dialect import Dialect, Shown
from holdfast.lifecycle.dialects.vocabularies import DIALECTS

__all__ = ["DIALECTS", "Dialect", "Shown"]
