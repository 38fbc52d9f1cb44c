"""A stand-in for your App, so that everything here runs as it stands."""

from kept import App

app = App()  # the database is named by KEPT_DATABASE_URL


@app.task()
async def send_welcome(user_id: int) -> str:
    """Pretend to send a mail."""
    return f"welcome, user {user_id}"
