"""Defects of the records of uploads."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.ports.uploads import Finalization, Reservation, Upload, UploadPart
from tests.stores.defects.wrapped import Wrapped


class CountsBeforeItReserves(Wrapped):
    caught_by = (
        "test_of_three_that_write_at_once_the_third_exceeds_the_tenants_limit",
        "test_an_upload_has_no_more_bytes_than_one_may_have",
    )

    async def reserve_upload(self, reservation: Reservation) -> Upload | None:
        found = await self.inner.reserve_upload(replace(reservation, bytes=0))
        if found is not None:
            sql = "UPDATE uploads SET reserved = ? WHERE id = ?"
            await self.raw(sql, reservation.bytes, reservation.id)
        return found


class LetsASecondWriterIn(Wrapped):
    caught_by = ("test_a_second_writer_is_refused_until_the_first_is_silent",)

    async def reserve_upload(self, reservation: Reservation) -> Upload | None:
        return await self.inner.reserve_upload(replace(reservation, writer="any"))


class FinalizesWhateverIsThere(Wrapped):
    caught_by = ("test_what_was_written_since_it_was_read_is_not_finalized",)

    async def finalize_upload(self, found: Finalization) -> Upload | None:
        [now] = await self.inner.look_up_uploads([found.id])
        return await self.inner.finalize_upload(
            replace(found, rev=0 if now is None else now.rev, silent=-(10**12))
        )


class ExpiresWhatIsUsedAgain(Wrapped):
    caught_by = ("test_an_upload_expires_only_when_its_time_is_over",)

    async def end_upload(self, id: str, *, due_only: bool, **wish: Any) -> Upload | None:
        return await self.inner.end_upload(id, due_only=False, **wish)


class ForgetsWhichJobsNameAnUpload(Wrapped):
    caught_by = ("test_an_upload_stays_while_a_job_that_names_it_has_not_ended",)

    async def use_upload(self, id: str, **wish: Any) -> Upload | None:
        found = await self.inner.use_upload(id, **wish)
        await self.raw("DELETE FROM upload_jobs")
        return found


class CountsAPartTwice(Wrapped):
    caught_by = ("test_a_part_that_is_written_again_is_counted_once",)

    async def end_write(self, id: str, *, part: UploadPart | None = None, **wish: Any) -> bool:
        [before] = await self.inner.look_up_uploads([id])
        ended = await self.inner.end_write(id, part=part, **wish)
        if part is not None and before is not None:
            total = before.bytes + part.bytes
            await self.raw("UPDATE uploads SET bytes = ? WHERE id = ?", total, id)
        return ended


DEFECTS: tuple[type[Wrapped], ...] = (
    CountsBeforeItReserves,
    LetsASecondWriterIn,
    FinalizesWhateverIsThere,
    ExpiresWhatIsUsedAgain,
    ForgetsWhichJobsNameAnUpload,
    CountsAPartTwice,
)
