"""Where an artifact comes from: a walk along manifests.

In:  an artifact and the store in which its ancestors lie.
Out: the ancestors by stage, nearest first.
"""

from artifacts.store import Artifact, Store
from flows.inventory import shelves


def ancestors(artifact: Artifact, *, store: Store) -> dict[str, Artifact]:
    """The artifact and everything it was made of, by stage; data from outside have no artifact."""
    known = {
        shelf.manifest.digest: Artifact(shelf.directory, shelf.manifest)
        for shelf in shelves(store)
        if shelf.manifest
    }
    found: dict[str, Artifact] = {}
    waiting = [artifact]
    while waiting:
        nearest = waiting.pop(0)
        if nearest.manifest.stage not in found:
            found[nearest.manifest.stage] = nearest
            digests = nearest.manifest.inputs.values()
            waiting += [known[digest] for digest in digests if digest in known]
    return found
