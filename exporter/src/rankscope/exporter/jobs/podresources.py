"""The messages of the kubelet's PodResources service, version 1: the parts that name the devices of each container."""

from __future__ import annotations

import functools
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_FIELD = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "v1"
# Message → field → number and type; "*" marks a repeated field. Fields that are not listed are skipped by the parser.
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "*PodResources")},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"devices": (1, "*ContainerDevices")},
    "PodResources": {"name": (1, "string"), "namespace": (2, "string"), "containers": (3, "*ContainerResources")},
    "ContainerResources": {
        "name": (1, "string"),
        "devices": (2, "*ContainerDevices"),
        "dynamic_resources": (5, "*DynamicResource"),
    },
    "ContainerDevices": {"resource_name": (1, "string"), "device_ids": (2, "*string")},
    "DynamicResource": {"claim_name": (2, "string"), "claim_namespace": (3, "string"), "claim_resources": (4, "*ClaimResource")},
    "ClaimResource": {
        "cdi_devices": (1, "*CDIDevice"),
        "driver_name": (2, "string"),
        "pool_name": (3, "string"),
        "device_name": (4, "string"),
    },
    "CDIDevice": {"name": (1, "string")},
}


_CALLS: Final = {"List": "ListPodResources", "GetAllocatableResources": "AllocatableResources"}


@functools.cache
def messages(method: str) -> tuple[type[Message], type[Message]]:
    """Return the request and response classes of a method: ``List`` or ``GetAllocatableResources``."""
    pool = descriptor_pool.DescriptorPool()  # a separate pool: another library may register the same names
    file = descriptor_pb2.FileDescriptorProto(name="rankscope/podresources.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, holds) in fields.items():
            kind = holds.removeprefix("*")
            field = message.field.add(name=field_name, number=number)
            field.label = _FIELD.LABEL_REPEATED if kind != holds else _FIELD.LABEL_OPTIONAL
            field.type = _FIELD.TYPE_STRING if kind == "string" else _FIELD.TYPE_MESSAGE
            if kind != "string":
                field.type_name = f".{_PACKAGE}.{kind}"
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in (f"{_CALLS[method]}Request", f"{_CALLS[method]}Response")
    )
    return request, response
