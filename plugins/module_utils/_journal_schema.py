# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of the journal.

A release only ever adds a script at the end of SCRIPTS; how many of them a file has had is its PRAGMA user_version. A
file that has had more than this release knows is refused: older code would not write what the newer one needs.

Plain tables only: SQLite 3.40 takes a table WITHOUT ROWID for damaged (quick_check) when its key is not in the order of
its columns.
"""

from __future__ import annotations

from typing import Tuple

#: PRAGMA application_id: "GPFC". Another program's database has another one.
APPLICATION_ID = 0x47504643

SCRIPTS: Tuple[Tuple[str, ...], ...] = (
    (
        """CREATE TABLE operations (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL,
            pid INTEGER NOT NULL,
            start_ticks INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            executable TEXT NOT NULL,
            uid INTEGER NOT NULL,
            goal TEXT NOT NULL,
            state_before TEXT NOT NULL,
            step TEXT NOT NULL,
            status TEXT NOT NULL,
            worker_pid INTEGER,
            worker_start_ticks INTEGER,
            worker_boot_id TEXT,
            park INTEGER NOT NULL,
            guard TEXT NOT NULL,
            restore_tid INTEGER,
            signal_mask TEXT,
            stopped_by TEXT NOT NULL,
            refused INTEGER,
            backend TEXT NOT NULL,
            message TEXT NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )""",
        "CREATE INDEX operations_by_process ON operations (boot_id, pid, start_ticks)",
        "CREATE INDEX operations_by_age ON operations (updated)",
        """CREATE TABLE device_bytes (
            operation INTEGER NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
            gpu TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            PRIMARY KEY (operation, gpu)
        )""",
        """CREATE TABLE steps (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            operation INTEGER NOT NULL REFERENCES operations (id) ON DELETE CASCADE,
            step TEXT NOT NULL,
            at REAL NOT NULL,
            seconds REAL,
            bytes INTEGER
        )""",
        "CREATE INDEX steps_by_operation ON steps (operation)",
        "CREATE INDEX steps_by_name ON steps (step)",
        """CREATE TABLE reservations (
            pid INTEGER NOT NULL,
            start_ticks INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            gpu TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            PRIMARY KEY (boot_id, pid, start_ticks, gpu)
        )""",
        """CREATE TABLE settings (
            name TEXT PRIMARY KEY,
            boot_id TEXT NOT NULL,
            before TEXT NOT NULL,
            during TEXT NOT NULL
        )""",
        """CREATE TABLE setting_users (
            name TEXT NOT NULL REFERENCES settings (name) ON DELETE CASCADE,
            pid INTEGER NOT NULL,
            start_ticks INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            PRIMARY KEY (name, boot_id, pid, start_ticks)
        )""",
    ),
    (
        """CREATE TABLE images (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            lineage TEXT NOT NULL,
            path TEXT NOT NULL,
            run_id TEXT NOT NULL,
            pid INTEGER NOT NULL,
            start_ticks INTEGER NOT NULL,
            boot_id TEXT NOT NULL,
            leave TEXT NOT NULL,
            step TEXT NOT NULL,
            status TEXT NOT NULL,
            worker_pid INTEGER,
            worker_start_ticks INTEGER,
            worker_boot_id TEXT,
            stopped TEXT NOT NULL,
            message TEXT NOT NULL,
            finished INTEGER NOT NULL,
            created REAL NOT NULL,
            updated REAL NOT NULL
        )""",
        "CREATE INDEX images_by_path ON images (path)",
        "CREATE INDEX images_by_root ON images (boot_id, pid, start_ticks)",
        "CREATE INDEX images_by_lineage ON images (lineage)",
    ),
    (
        """CREATE TABLE image_steps (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            image INTEGER NOT NULL REFERENCES images (id) ON DELETE CASCADE,
            step TEXT NOT NULL,
            at REAL NOT NULL,
            seconds REAL NOT NULL,
            bytes INTEGER NOT NULL
        )""",
        "CREATE INDEX image_steps_by_image ON image_steps (image)",
        "CREATE INDEX image_steps_by_name ON image_steps (step)",
    ),
    (
        """CREATE TABLE drains (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL,
            runs TEXT NOT NULL,
            kind TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            controller TEXT NOT NULL,
            phase TEXT NOT NULL,
            mode TEXT NOT NULL,
            store TEXT NOT NULL,
            boot_id TEXT NOT NULL,
            suspended_boot_id TEXT NOT NULL,
            selection TEXT NOT NULL,
            processes TEXT NOT NULL,
            scheduler TEXT NOT NULL,
            packages TEXT NOT NULL,
            declares TEXT NOT NULL,
            message TEXT NOT NULL,
            after_operation INTEGER NOT NULL,
            after_image INTEGER NOT NULL,
            opened REAL NOT NULL,
            updated REAL NOT NULL,
            closed REAL
        )""",
        # One row at most has no end: it has the host.
        "CREATE UNIQUE INDEX drains_open ON drains ((closed IS NULL)) WHERE closed IS NULL",
        """CREATE TABLE drain_phases (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            drain INTEGER NOT NULL REFERENCES drains (id) ON DELETE CASCADE,
            phase TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            at REAL NOT NULL,
            boot_id TEXT NOT NULL,
            message TEXT NOT NULL
        )""",
        "CREATE INDEX drain_phases_by_drain ON drain_phases (drain)",
    ),
    (
        """CREATE TABLE drain_failures (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            drain INTEGER NOT NULL REFERENCES drains (id) ON DELETE CASCADE,
            phase TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            at REAL NOT NULL,
            message TEXT NOT NULL
        )""",
        "CREATE INDEX drain_failures_by_drain ON drain_failures (drain)",
    ),
)
