"""Write Triton's protocol, out of the installed tritonclient, as a FileDescriptorSet; print its files, service last."""

import sys
from pathlib import Path

from google.protobuf import descriptor_pb2
from tritonclient.grpc import service_pb2


def main(out: str) -> None:
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}

    def add(descriptor) -> None:  # type: ignore[no-untyped-def]  # the C extension's class has no stub
        if descriptor.name in files:
            return
        for dependency in descriptor.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(proto)
        files[descriptor.name] = proto

    add(service_pb2.DESCRIPTOR)
    path = Path(out)
    data = descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString()
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    print(";".join(files))


main(sys.argv[1])
