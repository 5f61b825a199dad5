"""The stream between a node and the coordinator: frames, refusals, versions. Needs protobuf (the extra `grpc`)."""
