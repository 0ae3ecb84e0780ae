"""What garbage collection knows before it deletes.

Owns: `CollectionFacts`, the store's records and the manifests by which files and objects are judged
(the judgement is `storage.gc`), and the damage met on the way. Imports: metadata, storage.
Invariants: manifest objects never change, so each is read once; what cannot be read keeps its own
files and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import CorruptData, StorageError
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CoordinatorClaimRecord,
    CoordinatorRecord,
    IntentRecord,
    ManifestPointer,
    NamespaceRecord,
)
from magnetar.metadata.store import KeyValue
from magnetar.names import BundleName, bundles_of
from magnetar.storage import gc as collection
from magnetar.storage import names
from magnetar.storage.gc import BundleFacts, listed_in
from magnetar.storage.manifest import Manifest, read_manifest

log = structlog.get_logger(__name__)

LOG_OF_THE_DEAD, MANIFEST = "log of a dead broker", "manifest"
"""What may be damaged, as the table of damage names it: by incarnation, and by bundle."""
REWRITE = "rewrite"
"""Kind of the intents of segment compaction, whose `run` is the incarnation that writes."""


class CollectionFacts:
    """Reads facts of one broker's collection; remembers manifests."""

    def __init__(self, context: BrokerContext) -> None:
        self._context, self._store, self._volume = context, context.store, context.volume
        self._manifests: dict[str, tuple[str, Manifest]] = {}
        self._superseded: dict[str, frozenset[str]] = {}
        self._damaged: set[tuple[str, str]] = set()
        self._met: set[tuple[str, str]] = set()

    # --- damage -----------------------------------------------------------------------------------

    def note(self, what: str, about: str, error: Exception, bundle: str = "") -> None:
        """Something cannot be read. It is damage unless the error may pass by itself."""
        if isinstance(error, CorruptData):
            self._met.add((what, about))
            self._context.damage.note(what, about, error, bundle=bundle)
        else:
            log.warning("gc.unread", what=what, about=about, error=str(error))

    def forget_unmet(self) -> None:
        """After a round: damage that was not met in it is over, or another broker's to report."""
        for what, about in self._damaged - self._met:
            self._context.damage.clear(what, about)
        self._damaged, self._met = self._met, set()

    # --- the store --------------------------------------------------------------------------------

    async def items(self, prefix: str) -> dict[str, KeyValue]:
        """What the store has below a prefix, by what follows it. Raises StoreError."""
        return {
            item.key.removeprefix(prefix): item for item in (await self._store.range(prefix)).items
        }

    async def records(self) -> dict[str, BundleRecord]:
        """All bundle records by name."""
        items = await self.items(keys.BUNDLES)
        return {name: BundleRecord.decode(item.value) for name, item in items.items()}

    async def coordinators(self) -> list[CoordinatorRecord]:
        """What is known of every transaction coordinator's number."""
        items = await self.items(keys.COORDINATORS)
        return [CoordinatorRecord.decode(item.value) for item in items.values()]

    async def registered(self) -> set[str]:
        """Incarnations that live, as far as the store knows: of brokers and of coordinators."""
        brokers, claims = (
            await self.items(keys.INCARNATIONS),
            await self.items(keys.COORDINATOR_CLAIMS),
        )
        return brokers.keys() | {
            CoordinatorClaimRecord.decode(item.value).incarnation for item in claims.values()
        }

    async def intents(self) -> list[tuple[str, IntentRecord, int]]:
        """Ids, records and revisions of all intents."""
        items = await self.items(keys.INTENTS)
        return [
            (name, IntentRecord.decode(item.value), item.mod_revision)
            for name, item in items.items()
        ]

    async def is_claimed(self) -> bool:
        """Whether no broker has fenced us yet; asked after all that decides was read. Raises
        StorageError."""
        return await self._volume.exists(names.claim(self._context.incarnation))

    # --- bundles ----------------------------------------------------------------------------------

    async def bundles(self, listed: set[str]) -> dict[str, BundleFacts]:
        """Facts of every bundle that has a record, and of the `listed` ones."""
        records = await self.records()
        namespaces = {
            name: NamespaceRecord.decode(item.value).boundaries
            for name, item in (await self.items(keys.NAMESPACES)).items()
        }
        facts: dict[str, BundleFacts] = {}
        for name in {*records, *listed}:
            bundle, record = BundleName.parse(name), records.get(name)
            if name not in listed:
                facts[name] = BundleFacts(record, Manifest(name, 0))  # only its chain counts
                continue
            manifest = await self._manifest_of(bundle)
            deleted, heirs = False, tuple[str, ...]()
            if record is None or record.state is BundleState.DELETED:
                boundaries = namespaces.get(str(bundle.namespace))
                current = (
                    bundles_of(bundle.namespace, boundaries) if boundaries is not None else None
                )
                deleted = collection.is_over(bundle, record, current, records)
                heirs = collection.heirs_of(bundle, records)
            facts[name] = BundleFacts(record, manifest, deleted, heirs)
        for name in {heir for found in facts.values() for heir in found.heirs} - listed:
            facts[name] = BundleFacts(
                records.get(name), await self._manifest_of(BundleName.parse(name))
            )
        self.keep_manifests(facts)
        return facts

    async def _manifest_of(self, bundle: BundleName) -> Manifest | None:
        """The bundle's manifest, an empty one if it has none; None if it cannot be read. Raises
        StoreError."""
        item = await self._store.get(keys.manifest(bundle))
        if item is None:
            return Manifest(str(bundle), 0)
        return await self.read(str(bundle), ManifestPointer.decode(item.value).object)

    async def read(self, bundle: str, name: str) -> Manifest | None:
        """The manifest object `name`, to which the bundle's pointer points; None if it cannot be
        read. Raises StoreError."""
        held = self._manifests.get(bundle)
        if held is not None and held[0] == name:
            return held[1]
        try:
            found = await read_manifest(self._volume, name)
        except FileNotFoundError:
            item = await self._store.get(keys.manifest(BundleName.parse(bundle)))
            if item is not None and ManifestPointer.decode(item.value).object == name:
                missing = CorruptData(f"{name} is missing; restore it from a backup", file=name)
                self.note(MANIFEST, bundle, missing, bundle)
            return None  # or superseded since: the next round reads the one after it
        except StorageError as error:
            self.note(MANIFEST, bundle, error, bundle)
            return None
        self._manifests[bundle] = name, found
        return found

    def keep_manifests(self, bundles: Mapping[str, object]) -> None:
        """Forget the manifests of other bundles."""
        self._manifests = {name: held for name, held in self._manifests.items() if name in bundles}

    async def listed_by_superseded(self, objects: Iterable[str]) -> set[str]:
        """What those of the manifest `objects` list that no bundle's pointer names, as names of
        log files and segments. Raises StorageError."""
        current = {name for name, _ in self._manifests.values()}
        listed: dict[str, frozenset[str]] = {}
        for name in objects:
            if name in current:
                continue
            if name not in self._superseded:
                try:
                    self._superseded[name] = listed_in(await read_manifest(self._volume, name))
                except (FileNotFoundError, CorruptData):
                    continue  # a restore ignores it, too
            listed[name] = self._superseded[name]
        self._superseded = listed
        return {name for found in listed.values() for name in found}
