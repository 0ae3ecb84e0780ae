"""Topic compaction as DataFrame-to-DataFrame functions.

Owns: which messages survive. Imports: pyspark, orders, messages (for the kinds). Input: one row per
decidable message, MESSAGE_SCHEMA, without payload. Output: SURVIVOR_SCHEMA, one row per message
that stays. Invariants: payloads never pass through here; the result depends on the set of input
rows only, not on their partitioning; markers never take part in the choice; a deletion is dropped,
except one that a transaction's commit marker precedes: the marker's messages are kept elsewhere and
may hold the same key, so a reader must still learn that it is gone.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from magnetar.compaction.messages import Kind
from magnetar.compaction.orders import GROUP_SHIFT, LIVE

MESSAGE_SCHEMA = (
    "key binary, order bigint, kind int, chunk binary, chunk_number int, chunk_count int"
)
SURVIVOR_SCHEMA = "group int, order bigint"


def is_live(order: Column) -> Column:
    return order.bitwiseAND(LIVE) == LIVE


def stays(*, retain_keyless: bool) -> Column:
    """Rows that no other row can remove: what cannot be opened, commit markers, and keyless
    messages if they are retained."""
    fixed = F.col("kind").isin(int(Kind.OPAQUE), int(Kind.COMMIT))
    keyless = (F.col("kind") == int(Kind.KEYED)) & F.col("key").isNull()
    return fixed | keyless if retain_keyless else fixed


def counts(messages: DataFrame) -> dict[str, Column]:
    """What phase 1 observes on its way, as aggregates over `messages`."""
    kind = F.col("kind")
    return {
        "messages": F.count(F.lit(1)),
        "keyless": F.count_if((kind == int(Kind.KEYED)) & F.col("key").isNull()),
        "deletions": F.count_if(
            (kind == int(Kind.KEYED)) & F.col("key").isNotNull() & ~is_live(messages["order"])
        ),
        "opaque": F.count_if(kind == int(Kind.OPAQUE)),
        "chunks": F.count_if(kind == int(Kind.CHUNK)),
        "first_commit": F.min(F.when(kind == int(Kind.COMMIT), F.col("order"))),
    }


def newest_per_key(messages: DataFrame, *, retain_keyless: bool = False) -> DataFrame:
    """The order of the newest message of each key, deletions included (`keyed`), and of every
    row that stays. Without chunks."""
    staying = stays(retain_keyless=retain_keyless)
    candidates = messages.where(
        staying | ((F.col("kind") == int(Kind.KEYED)) & F.col("key").isNotNull())
    )
    # A row that stays is a group of its own: one scan and one shuffle serve both.
    keyed = candidates.select(
        F.when(~staying, F.col("key")).alias("key"),
        F.when(staying, F.col("order")).alias("alone"),
        "order",
    )
    return (
        keyed.groupBy("key", "alone")
        .agg(F.max("order").alias("order"))
        .select("order", F.col("alone").isNull().alias("keyed"))
    )


def whole_messages(messages: DataFrame) -> DataFrame:
    """Chunked messages put together: key, order of the last chunk, orders of all chunks, and
    whether all of them are there."""
    chunks = messages.where(F.col("kind") == int(Kind.CHUNK))
    grouped = chunks.groupBy("chunk").agg(
        F.max_by("key", "order").alias("key"),
        F.max("order").alias("order"),
        F.collect_list("order").alias("orders"),
        (F.count_distinct("chunk_number") == F.max("chunk_count")).alias("complete"),
    )
    return grouped.select("key", "order", "orders", "complete")


def newest_with_chunks(messages: DataFrame, *, retain_keyless: bool = False) -> DataFrame:
    """As `newest_per_key`, with every chunk of a chunked message that is the newest of its key.

    A message some of whose chunks are missing has not been published yet as far as any reader can
    tell: its chunks stay, and the run that sees the last one decides.
    """
    whole = whole_messages(messages)
    complete = whole.where(F.col("complete"))
    kind = F.when(
        F.col("key").isNull() & F.lit(not retain_keyless), F.lit(int(Kind.MARKER))
    ).otherwise(F.lit(int(Kind.KEYED)))
    as_messages = complete.select("key", "order", kind.cast("int").alias("kind"))
    plain = messages.where(F.col("kind") != int(Kind.CHUNK)).select("key", "order", "kind")
    newest = newest_per_key(plain.unionByName(as_messages), retain_keyless=retain_keyless)
    chunk_lists = complete.select(F.col("order").alias("last"), "orders")
    # The chunks of a winner stay with it; one of them, the last, stands for its key.
    expanded = newest.join(chunk_lists, newest["order"] == chunk_lists["last"], "left").select(
        "keyed",
        F.col("order").alias("decided"),
        F.explode(F.coalesce("orders", F.array("order"))).alias("order"),
    )
    winners = expanded.select(
        "order", (F.col("keyed") & (F.col("order") == F.col("decided"))).alias("keyed")
    )
    waiting = whole.where(~F.col("complete")).select(
        F.explode("orders").alias("order"), F.lit(False).alias("keyed")
    )
    return winners.unionByName(waiting).select("order", "keyed")


def is_kept(first_commit: int | None) -> Column:
    """Live messages, and deletions after the first commit marker if there is one."""
    order = F.col("order")
    return is_live(order) if first_commit is None else is_live(order) | (order > first_commit)


def group_column() -> Column:
    return F.shiftright("order", GROUP_SHIFT).cast("int").alias("group")


def survivors(newest: DataFrame, first_commit: int | None) -> DataFrame:
    """What stays, SURVIVOR_SCHEMA."""
    return newest.where(is_kept(first_commit)).select(group_column(), "order")


def survivors_per_group(newest: DataFrame, first_commit: int | None) -> DataFrame:
    """How many messages of each group stay, and how many keys they set."""
    kept = newest.select(group_column(), "order", "keyed", is_kept(first_commit).alias("stays"))
    counted = kept.groupBy("group").agg(
        F.count_if("stays").alias("kept"),
        F.count_if(F.col("keyed") & is_live(F.col("order"))).alias("keys"),
    )
    return counted.select("group", "kept", "keys")


def in_writing_order(kept: DataFrame, tasks: DataFrame, partitions: int) -> DataFrame:
    """Survivors dealt to the tasks that write them (`tasks`: group, task), each task's in
    position order."""
    dealt = kept.join(F.broadcast(tasks), "group")
    return (
        dealt.repartitionById(partitions, "task")
        .sortWithinPartitions("order")
        .select("group", "order")
    )
