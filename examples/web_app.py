"""The agent of support.py in FastAPI: send to it, read its words live, approve on a page.

pip install fastapi uvicorn; uvicorn --app-dir examples web_app:app --timeout-graceful-shutdown 1
curl -N localhost:8000/chats/ana                 the conversation, in a second terminal
curl -X POST "localhost:8000/chats/ana/mail-1?text=My+lamp+is+broken"        in a third
http://localhost:8000/approvals                  in a browser
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from html import escape

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from support import scripted, support

import everhold
from everhold.agents import extract_text
from everhold.errors import AnswerConflict


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with everhold.open("sqlite:///web_app.db", llm=scripted) as app.state.runtime:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{chat}/{id}", status_code=202)
async def send(chat: str, id: str, text: str) -> None:  # it is stored now, and answered once
    await (await app.state.runtime.session(support, chat)).enqueue(text, key=id)


@app.get("/chats/{chat}", response_class=EventSourceResponse)
async def follow(chat: str, request: Request) -> AsyncIterator[ServerSentEvent]:
    session = await app.state.runtime.session(support, chat)
    async for event in session.events(request.headers.get("last-event-id")):
        text = extract_text(event.node.content) if event.node else event.text
        yield ServerSentEvent(event=event.kind, id=event.cursor, data=text)


@app.get("/approvals", response_class=HTMLResponse)
async def approvals() -> str:
    return "<title>Approvals</title>" + "".join(
        f"<form method=post><p>{escape(one.prompt)}</p>"
        f"<button formaction=/approvals/{one.session_id}/{one.id}/yes>Yes</button> "
        f"<button formaction=/approvals/{one.session_id}/{one.id}/no>No</button></form>"
        for one in await app.state.runtime.inbox(kind="approval")
    )


@app.post("/approvals/{session}/{query}/{answer}")
async def approve(session: str, query: str, answer: bool) -> RedirectResponse:
    by = {"front": "web", "user": "maria"}  # whoever is logged in
    with suppress(AnswerConflict):  # somebody was faster
        await app.state.runtime.answer(session, answer, query_id=query, by=by, wait=0)
    return RedirectResponse("/approvals", 303)
