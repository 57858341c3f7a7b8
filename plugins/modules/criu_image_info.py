#!/usr/bin/python
# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: criu_image_info
short_description: Lists images of CUDA processes on disk, and verifies them
version_added: 0.1.0
author:
  - gpufleet contributors (@gpufleet)
description:
  - Tells, for each image that M(gpufleet.checkpoint.criu_image) made, the processes in it, its size and age, the driver
    and the GPUs that it needs, whether it has been restored already, and whether what was restored lives.
  - Tells as well what is no image although it looks like one, with the reason, and what was begun and never finished.
  - With O(verify) it compares every image with the sizes or the checksums that were taken when it was made.
  - Nothing is changed. Nothing of the memory in an image is returned; paths, names and process ids are.
extends_documentation_fragment:
  - gpufleet.checkpoint._attributes
  - gpufleet.checkpoint._attributes.info_module
  - gpufleet.checkpoint._attributes.linux
  - gpufleet.checkpoint._attributes.actiongroup_all
options:
  path:
    description:
      - The path of one image.
      - If there is none, RV(images) is empty, which is no failure.
      - Exactly one of O(path) and O(store) is required.
    type: path
  store:
    description:
      - A directory that holds images. Each directory in it is looked at, those further down are not.
      - A store that does not exist has no images, which is no failure.
      - Exactly one of O(path) and O(store) is required.
    type: path
  verify:
    description:
      - How closely to compare an image with what its manifest says of it.
      - V(none) does not look at the files of an image.
      - V(sizes) looks for files that are missing, that are there in addition, or that have another size.
      - V(full) reads everything, too, on all cores, and compares the SHA-256 of each chunk. It takes as long as the
        disk needs.
      - What is found is in RV(images[].problems), and is no failure of the task.
    type: str
    choices: [none, sizes, full]
    default: none
notes:
  - It has to run as root, since images are closed to everybody else. Set C(become).
seealso:
  - module: gpufleet.checkpoint.criu_image
"""

EXAMPLES = r"""
- name: List the images of a store
  gpufleet.checkpoint.criu_image_info:
    store: /var/lib/gpufleet/images
  register: store

- name: Show what could be restored, the newest first
  ansible.builtin.debug:
    msg: "{{ item.path }}: PID {{ item.pid }}, {{ item.device_bytes }} bytes of GPU memory, driver {{ item.driver }}"
  loop: "{{ store.images | rejectattr('spent') | sort(attribute='age_seconds') }}"
  loop_control:
    label: "{{ item.name }}"

- name: Read an image as a whole before the host is taken down
  gpufleet.checkpoint.criu_image_info:
    path: /var/lib/gpufleet/images/inference-4711
    verify: full
  register: image

- name: Fail unless it is there and as it was made
  ansible.builtin.assert:
    that:
      - image.images | length == 1
      - image.images[0].problems | length == 0

- name: Show images whose processes are alive on this host
  ansible.builtin.debug:
    msg: "{{ item.path }}: {{ item.lives | map(attribute='pid') | join(', ') }}"
  loop: "{{ store.images | selectattr('lives') }}"
  loop_control:
    label: "{{ item.name }}"
"""

RETURN = r"""
images:
  description: The images, sorted by name.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The directory of the image.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/inference-4711
    name:
      description: The name that the image was made with.
      returned: success
      type: str
      sample: inference-4711
    lineage:
      description: What joins a process, its image and what is restored from it, whatever their process ids.
      returned: success
      type: str
      sample: 5b1d7c0e6f2a4a0f9a4b6d1c2e3f4a5b
    created:
      description: When the image was made, in UTC.
      returned: success
      type: str
      sample: "2026-11-30T02:01:45Z"
    age_seconds:
      description: How long ago that was, in seconds.
      returned: success
      type: int
      sample: 3600
    bytes:
      description: What the image takes on the disk, in bytes.
      returned: success
      type: int
      sample: 9127854080
    host_bytes:
      description: The host memory of its processes, without what was GPU memory, in bytes.
      returned: success
      type: int
      sample: 536870912
    device_bytes:
      description: The GPU memory of its processes, in bytes.
      returned: success
      type: int
      sample: 8589934592
    compressed:
      description: V(zstd), or V(null) if it is not compressed.
      returned: success
      type: str
      sample: zstd
    pid:
      description: The process id of the root of the tree. It is the same when it is restored.
      returned: success
      type: int
      sample: 4711
    tree:
      description: The processes, each after its parent.
      returned: success
      type: list
      elements: dict
      contains:
        pid:
          description: The process id.
          returned: success
          type: int
          sample: 4711
        parent:
          description: The process id of its parent.
          returned: success
          type: int
          sample: 1
        name:
          description: Its name.
          returned: success
          type: str
          sample: python3
        executable:
          description: Path of the executable.
          returned: success
          type: str
          sample: /usr/bin/python3.12
        uid:
          description: The user id of its owner.
          returned: success
          type: int
          sample: 1000
        threads:
          description: How many threads it has.
          returned: success
          type: int
          sample: 24
        cuda:
          description: Whether it uses CUDA.
          returned: success
          type: bool
          sample: true
        device_bytes:
          description: The GPU memory that it held, in bytes.
          returned: success
          type: int
          sample: 8589934592
        state_before:
          description: The state of CUDA before the image was made, V(null) without CUDA.
          returned: success
          type: str
          sample: running
        stopped_before:
          description: Whether somebody had stopped it before. Then it is stopped when it is restored, too.
          returned: success
          type: bool
          sample: false
    gpus:
      description: The GPUs that the tree had in use. It needs as many of the same models.
      returned: success
      type: list
      elements: dict
      contains:
        uuid:
          description: The UUID of the GPU.
          returned: success
          type: str
          sample: GPU-8f2b1c1e-6a0d-4a1c-9f57-0c4f4c1f2b7a
        index:
          description: The index that the GPU had.
          returned: success
          type: int
          sample: 0
        model:
          description: Its model.
          returned: success
          type: str
          sample: NVIDIA H200
        bytes:
          description: The GPU memory that the tree held there, in bytes.
          returned: success
          type: int
          sample: 8589934592
    files:
      description: The regular files that the tree had open. They have to be there when it is restored.
      returned: success
      type: list
      elements: dict
      contains:
        path:
          description: The path of the file.
          returned: success
          type: str
          sample: /var/log/inference.log
        size:
          description: Its size when the image was made, in bytes, V(-1) if it may have grown since.
          returned: success
          type: int
          sample: 1048576
        deleted:
          description: Whether it had no name any more. Then it is in the image.
          returned: success
          type: bool
          sample: false
        writable:
          description: Whether it was open for writing.
          returned: success
          type: bool
          sample: true
    driver:
      description: The version of the NVIDIA driver, V(null) if there was none. Exactly this one is needed.
      returned: success
      type: str
      sample: 580.159.04
    criu:
      description: The version of CRIU that made the image.
      returned: success
      type: str
      sample: 4.1.1
    criu_options:
      description: The options that CRIU was given.
      returned: success
      type: list
      elements: str
      sample: [--shell-job]
    hostname:
      description: The host that the image was made on.
      returned: success
      type: str
      sample: gpu07
    kernel:
      description: The kernel of that host.
      returned: success
      type: str
      sample: 6.12.48+deb13-amd64
    machine:
      description: The architecture of that host.
      returned: success
      type: str
      sample: x86_64
    snapshot:
      description: Whether the processes went on when the image was made.
      returned: success
      type: bool
      sample: false
    state:
      description:
        - V(unspent) if it was never restored.
        - V(restoring) if that is happening, or was broken off.
        - V(spent) if it was restored. It can't be again, since two lives of one process would destroy each other's
          work.
        - V(held) if it is a copy from another host that has not given it up, V(moved) if it was given up for another
          host, V(returned) if it was given back to one. None of these can be restored here.
      returned: success
      type: str
      sample: unspent
    spent:
      description: Whether RV(images[].state) is V(spent).
      returned: success
      type: bool
      sample: false
    lives:
      description: Those of the restored processes that are alive on this host.
      returned: success
      type: list
      elements: dict
      contains:
        pid:
          description: The process id.
          returned: success
          type: int
          sample: 4711
        start_ticks:
          description: When the process started, in clock ticks after the boot of the host.
          returned: success
          type: int
          sample: 1893412
        boot_id:
          description: The boot of the host.
          returned: success
          type: str
          sample: 6e1f0c58-1d5b-4b3c-9a3e-0b9d3f0a7c11
    verified:
      description: How closely it was compared, as O(verify).
      returned: success
      type: str
      sample: full
    problems:
      description: What is not as it was when the image was made.
      returned: success
      type: list
      elements: str
      sample: ["pages-1.img is damaged: chunk 33 of 2048 (from byte 134217728) differs"]
    run_id:
      description: The run of M(gpufleet.checkpoint.criu_image) that made it.
      returned: success
      type: str
      sample: 20261130T020145-7f3a9c
broken:
  description: What is in the place of an image and can't be taken for one.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The directory.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/old
    why:
      description: What was seen there, why it matters and what helps.
      returned: success
      type: str
      sample: "/var/lib/gpufleet/images/old/manifest.json: version is 2; allowed: 1; a newer release may know it."
partial:
  description:
    - What is being made, unpacked or deleted, or what is left of that. Nothing restores it, and
      M(gpufleet.checkpoint.criu_image) removes what nobody is at work on.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: The directory.
      returned: success
      type: str
      sample: /var/lib/gpufleet/images/inference-4711.partial
    by:
      description: The process that is or was at work on it, and its host, V(null) if it is not known.
      returned: success
      type: str
      sample: PID 5120 of gpu07
    active:
      description: Whether it still is.
      returned: success
      type: bool
      sample: true
    bytes:
      description: What it takes on the disk, in bytes.
      returned: success
      type: int
      sample: 4294967296
"""

import os
import time
from typing import Any, Mapping, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpufleet.checkpoint.plugins.module_utils._arguments import ArgumentError, parse_place
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.errors import CriuError
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._criu.inspection import inspect_path, inspect_store
from ansible_collections.gpufleet.checkpoint.plugins.module_utils._signals import hear_of_children

ARGUMENTS = {
    "path": {"type": "path"},
    "store": {"type": "path"},
    "verify": {"type": "str", "choices": ["none", "sizes", "full"], "default": "none"},
}


def places_of(params: Mapping[str, Any]) -> Tuple[str, str]:
    """path and store; "" for the one that is not given. Raises ArgumentError."""
    return parse_place("path", params["path"]), parse_place("store", params["store"])


def main() -> None:
    hear_of_children()
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        mutually_exclusive=[("path", "store")],
        required_one_of=[("path", "store")],
        supports_check_mode=True,
    )
    params = module.params
    try:
        path, store = places_of(params)
    except ArgumentError as error:
        module.fail_json(msg=str(error))
    if os.geteuid() != 0:
        module.fail_json(
            msg=f"The task runs as user id {os.geteuid()}. Images are closed to everybody but root. Set become: true."
        )
    try:
        if path:
            found = inspect_path(path, params["verify"], time.time())
        else:
            found = inspect_store(store, params["verify"], time.time())
    except CriuError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or params['path'] or params['store']}: {error.strerror or error}.")
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
