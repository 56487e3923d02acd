// A client and a worker on the bus that share no code with the SDK: `node peer.mjs work|submit ...`.
// The messages are described by a FileDescriptorSet, so that nothing here repeats the protocol.
import { readFileSync } from "node:fs";
import { connect } from "nats";
import protobuf from "protobufjs";
import "protobufjs/ext/descriptor/index.js";

const [verb, url, descriptors, topic, jobId] = process.argv.slice(2);
const files = protobuf.descriptor.FileDescriptorSet.decode(readFileSync(descriptors));
const root = protobuf.Root.fromDescriptor(files).resolveAll();
const BusPacket = root.lookupType("cordum.agent.v1.BusPacket");
const now = () => ({ seconds: Math.floor(Date.now() / 1000), nanos: 0 });

function packet(sender, trace, payload) {
  const made = { sender_id: sender, trace_id: trace, protocol_version: 1, created_at: now() };
  return BusPacket.encode(BusPacket.fromObject({ ...made, ...payload })).finish();
}

const bus = await connect({ servers: url });
if (verb === "submit") {
  const request = { job_id: jobId, topic, context_ptr: "node://context" };
  bus.publish("sys.job.submit", packet("node-client", "node-trace", { job_request: request }));
  await bus.drain();
} else {
  const jobs = bus.subscribe(topic);
  await bus.flush();
  console.log("listening");
  for await (const message of jobs) {
    const { trace_id, job_request } = BusPacket.decode(message.data);
    const result = {
      job_id: job_request.job_id,
      status: "JOB_STATUS_SUCCEEDED",
      result_ptr: `${job_request.context_ptr}/result`,
      worker_id: "node-worker",
    };
    bus.publish("sys.job.result", packet("node-worker", trace_id, { job_result: result }));
  }
}
