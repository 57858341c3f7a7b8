#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: criu_image_handoff
short_description: Hands images from one host to another, so that no process lives twice
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - An image has one life, and so has an image with a copy on another host. This module moves the right to it, step by
    step, between the host that has it (the source) and the one that gets it (the target). It moves no data.
  - The source gives the right up, on the disk, before it tells the key by which the target takes it. The other way
    round it is the same. So at no time may both restore, whatever is killed, wherever.
  - Each step may be repeated. What is done already is left as it is, and answered the same.
  - The role C(gpufleet.checkpoint.gpu_migrate) does all of it in the right order, and what belongs in between.
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - One line per image.
  idempotent:
    support: full
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
options:
  state:
    description:
      - The step.
    type: str
    required: true
    choices:
      offered: >-
        On the source. The images may be copied for the host O(peer). They can be restored here as before, which ends
        the offer.
      received: >-
        On the target. There is a place for each copy, RV(handoffs[].into), with what an earlier attempt has brought
        there already. Where RV(handoffs[].after) is not V(partial), nothing has to be brought.
      accepted: >-
        On the target. Each copy has been verified, and waits for its source. It can't be restored.
      fenced: >-
        On the source. The images can never be restored here again, unless the target gives them back.
      taken: >-
        On the target. The copies can be restored here.
      returned: >-
        On the target. The copies can never be restored here again. Refused for one that has been restored, or may be
        half restored.
      reclaimed: >-
        On the source. The images can be restored here again.
      concluded: >-
        On the source. The images are spent, since they live on the target, and may be deleted.
  store:
    description:
      - The directory of images of this host, as an absolute path.
    type: path
    required: true
  names:
    description:
      - The images by their names in O(store), for O(state=offered).
    type: list
    elements: str
  handoffs:
    description:
      - The images, for every other step. They are what the step before it has returned in RV(handoffs). For
        O(state=returned), RV(gpufleet.checkpoint.gpu_migration_info#module:trees) will do.
    type: list
    elements: dict
  peer:
    description:
      - The machine id of the other host, as RV(gpufleet.checkpoint.gpu_migration_info#module:machine) tells it. Needed
        for O(state=offered) and O(state=accepted).
    type: str
    default: ""
  peer_name:
    description:
      - What people call the other host. For messages.
    type: str
    default: ""
  transfer:
    description:
      - V(shared) if both hosts see the same store. There is one image then, and no copy. For O(state=offered).
    type: str
    choices: [copy, shared]
    default: copy
  verify:
    description:
      - How a copy is checked before it is accepted.
    type: str
    choices:
      full: Every byte against its checksum.
      sizes: Every file is there and has its size.
    default: full
  seconds:
    description:
      - How long the transfer of all these images took, for the estimates of later ones. For O(state=accepted). V(0) is
        unknown.
    type: float
    default: 0
  journal:
    description:
      - Path of the host's journal.
    type: path
    default: /var/lib/gpufleet/checkpoint.db
  run_id:
    description:
      - A name for this run in the journal. Without it, one is made up.
    type: str
notes:
  - The module needs to be root.
seealso:
  - module: gpufleet.checkpoint.criu_image
  - module: gpufleet.checkpoint.gpu_migration_info
"""

EXAMPLES = r"""
- name: Offer an image to another host
  gpufleet.checkpoint.criu_image_handoff:
    state: offered
    store: /var/lib/gpufleet/images
    names: [inference-4711]
    peer: 4c1f0e5d8a7b4f0b9a6a1b2c3d4e5f60
    peer_name: gpu08
  register: offered

- name: Have that host give it back, which was never restored there
  gpufleet.checkpoint.criu_image_handoff:
    state: returned
    store: /var/lib/gpufleet/images
    handoffs:
      - name: inference-4711
        id: "{{ offered.handoffs[0].id }}"
  delegate_to: gpu08
"""

RETURN = r"""
run_id:
  description: The name of this run in the journal.
  returned: when the options are valid
  type: str
  sample: 20261130T020145-7f3a9c
handoffs:
  description: >-
    Each image, for the next step. On failure, too, as it is then, but of one that failed only if it is known to be the
    one that was asked for: that of the move, or one whose process lives here.
  returned: when the options are valid
  type: list
  elements: dict
  contains:
    name:
      description: Of the image in its store.
      returned: success
      type: str
      sample: inference-4711
    id:
      description: Of this move.
      returned: success
      type: str
      sample: 0b9d3f0a7c116e1f0c581d5b4b3c9a3e
    lineage:
      description: What joins the process, its image and its later lives.
      returned: success
      type: str
      sample: 5b1d7c0e6f2a4a0f9a4b6d1c2e3f4a5b
    manifest:
      description: SHA-256 of its manifest.
      returned: success
      type: str
      sample: 3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7
    lock:
      description: SHA-256 of the key of whoever spoke last.
      returned: success
      type: str
      sample: ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb
    key:
      description: What the side gives away that has given the image up, empty before.
      returned: success
      type: str
      sample: ""
    side:
      description: V(shared) if there is one image that both see, else V(source).
      returned: success
      type: str
      sample: source
    path:
      description: The image on this host.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/inference-4711
    into:
      description: Where the files of the copy are to be brought, empty if nowhere.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/inference-4711.partial
    before:
      description: >-
        What it was: V(none), V(partial), or the state of its image, as
        RV(gpufleet.checkpoint.criu_image_info#module:images[].state) tells it.
      returned: success
      type: str
      sample: held
    after:
      description: What it is.
      returned: success
      type: str
      sample: unspent
"""

import os
import re
from typing import Any, Dict, Mapping, Optional

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.checkpoint.plugins.module_utils import _compile_once

_compile_once.install()

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import (
    ArgumentError,
    parse_place,
    parse_run_id,
)
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._handoff_words import parse_entries
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._image_handoff import Handing, HandoffOptions, result
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal import open_journal
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._journal_errors import JournalError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._words import printable

ARGUMENTS = {
    "state": {
        "type": "str",
        "required": True,
        "choices": ["offered", "received", "accepted", "fenced", "taken", "returned", "reclaimed", "concluded"],
    },
    "store": {"type": "path", "required": True},
    "names": {"type": "list", "elements": "str"},
    "handoffs": {"type": "list", "elements": "dict"},
    "peer": {"type": "str", "default": ""},
    "peer_name": {"type": "str", "default": ""},
    "transfer": {"type": "str", "choices": ["copy", "shared"], "default": "copy"},
    "verify": {"type": "str", "choices": ["full", "sizes"], "default": "full"},
    "seconds": {"type": "float", "default": 0},
    "journal": {"type": "path", "default": "/var/lib/gpufleet/checkpoint.db"},
    "run_id": {"type": "str"},
}


def options_of(params: Mapping[str, Any], check: bool) -> HandoffOptions:
    """Raises ArgumentError."""
    peer = params["peer"]
    if params["state"] in ("offered", "accepted") and not re.fullmatch(r"[0-9a-f]{32}", peer):
        raise ArgumentError("peer", repr(peer), "The machine id of the other host is allowed: 32 digits, 0-9a-f.")
    return HandoffOptions(
        state=params["state"],
        store=parse_place("store", params["store"]),
        entries=parse_entries(params["handoffs"] or [{"name": name} for name in params["names"] or ()]),
        peer=peer,
        peer_name=printable(params["peer_name"])[:200],
        transfer=params["transfer"],
        verify=params["verify"],
        seconds=params["seconds"],
        run_id=parse_run_id(params["run_id"]),
        check=check,
    )


def main() -> None:
    hear_of_children()
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("names", "handoffs")],
        required_one_of=[("names", "handoffs")],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(
            msg=f"criu_image_handoff: it runs as user id {os.geteuid()}. Images belong to root. Set become: true."
        )
    handing: Optional[Handing] = None
    try:
        options = options_of(module.params, module.check_mode)
        with open_journal(os.path.abspath(module.params["journal"]), create=not module.check_mode) as journal:
            handing = Handing(options, journal)
            handing.run()
            found = result(handing)
    except (ArgumentError, CriuError, JournalError, OSError) as error:
        done: Dict[str, Any] = {} if handing is None else result(handing)
        module.fail_json(msg=str(error), **done)
    module.exit_json(**found)


if __name__ == "__main__":
    main()
