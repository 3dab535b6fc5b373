"""The section of docs/use/fences.md about PostgreSQL, block by block, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess

import psycopg
import pytest
from conftest import ROOT

PAGE = (ROOT / "docs" / "use" / "fences.md").read_text()
SECTION = PAGE.split("## PostgreSQL, from any language\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```([\w-]+)\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)


def test_every_block_does_what_the_page_says(postgres_url: str, binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_url.rsplit("/", 1)[0] + "/fences_page"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS fences_page WITH (FORCE)")
        connection.execute("CREATE DATABASE fences_page")
    monkeypatch.setenv("SHOP_URL", url)
    monkeypatch.setenv("PATH", f"{os.path.dirname(os.path.abspath(binary))}:{os.environ['PATH']}")
    assert [kind for kind, _ in BLOCKS] == ["sh", "sql", "python", "python", "sql-refused", "sql-refused", "sh"]
    with psycopg.connect(url, autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (total int)")
        shop.execute("INSERT INTO orders VALUES (0)")
        for at, (kind, text) in enumerate(BLOCKS):
            if kind == "sh":
                ran = subprocess.run(["sh", "-euc", text], check=True, capture_output=True, text=True)
                if at == 0:
                    assert re.search(r"^orders +- .* orders$", ran.stdout, re.MULTILINE), ran.stdout
            elif kind == "sql":
                shop.execute(text)
            elif kind == "python":
                exec(compile(text, "docs/use/fences.md", "exec"), {})
            else:
                statements, expected = text.rsplit("-- ", 1)
                state, message = expected.strip().split(": ", 1)
                with pytest.raises(psycopg.Error) as refused:
                    shop.execute(statements)
                shop.rollback()
                assert refused.value.sqlstate == state
                assert refused.value.diag.message_primary == message
            found = shop.execute("SELECT total FROM orders").fetchone()
            assert found == (min(3, max(0, at)),), text
        shop.execute("UPDATE orders SET total = 7")
        assert shop.execute("SELECT to_regclass('palisade_fence')").fetchone() == (None,)
