"""Requests to an engine's administration endpoints: bounded in time and size, no proxy, no redirects."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from coldstart_snapshot.containers.network import inside
from coldstart_snapshot.engines.engine import EngineError, EngineSilentError, Served
from coldstart_snapshot.engines.settings import EngineSettings

_LARGEST_BYTES = 4 << 20
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class Answer:
    """The status and the body of one answer."""

    status: int
    body: bytes

    def table(self) -> dict[str, Any]:
        """The body as a JSON object; empty where it is none."""
        try:
            document = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return document if isinstance(document, dict) else {}


@dataclass
class Calls:
    """Calls to one server with one deadline for all of them."""

    settings: EngineSettings
    served: Served
    deadline: float = field(default=0.0)

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.settings.timeout_seconds

    @property
    def left_seconds(self) -> float:
        return self.deadline - time.monotonic()

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, missing: str | None = None
    ) -> Answer:
        """The answer, whose status is 2xx; with `missing` 404 and 405 are told by that sentence."""
        answer = self.try_ask(method, path, body)
        if answer.status in {404, 405} and missing is not None:
            raise EngineError(f"{self._label(method, path)}: {answer.status}", hint=missing)
        if not 200 <= answer.status < 300:
            text = answer.body.decode("utf-8", "replace").strip()[:_SHOWN_CHARACTERS]
            raise EngineError(f"{self._label(method, path)}: {answer.status} {text}".rstrip())
        return answer

    def try_ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        """The answer whatever its status; `EngineError` where there is none in time."""
        assert self.settings.url is not None
        address = urlsplit(self.settings.url)
        assert address.hostname is not None
        if self.left_seconds <= 0:
            raise EngineSilentError(
                f"{self._label(method, path)}: no time left", hint="raise the engine's timeout"
            )
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        content = b"" if body is None else json.dumps(body).encode()
        # a connection kept alive would be part of the snapshot
        headers = {"Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        with inside(self.served.network):
            connection = kind(address.hostname, address.port, timeout=self.left_seconds)
            try:
                connection.request(method, address.path.rstrip("/") + path, body=content, headers=headers)
                response = connection.getresponse()
                return Answer(response.status, response.read(_LARGEST_BYTES))
            except TimeoutError as error:
                seconds = self.settings.timeout_seconds
                raise EngineSilentError(
                    f"{self._label(method, path)}: no answer within {seconds:g} s"
                ) from error
            except ConnectionRefusedError as error:
                raise EngineError(f"{self._label(method, path)}: {error.strerror}") from error
            except (OSError, UnicodeError, http.client.HTTPException) as error:
                reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                raise EngineSilentError(f"{self._label(method, path)}: {reason}") from error
            finally:
                connection.close()

    def _label(self, method: str, path: str) -> str:
        return f"engine {self.settings.kind} did not answer {method} {path}"
