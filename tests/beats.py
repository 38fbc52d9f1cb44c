"""The App of the acceptance tests of schedules: two that come every second, one by an interval and one by the clock."""

from __future__ import annotations

from errands import write
from kept import App, Context, cron, every

app = App()


@app.schedule(every("1s"), overlap="allow", misfire="all", most=100)
async def beat(ctx: Context) -> None:
    """Every second, from when it was declared."""
    write(ctx, "beat", slot=str(ctx.slot))


@app.schedule(cron("* * * * * *", tz="Europe/Berlin"), overlap="allow", misfire="all", most=100)
async def chime(ctx: Context) -> None:
    """Every whole second."""
    write(ctx, "chime", slot=str(ctx.slot))
