// Makes the calls that stdin tells of, all at once on one channel, and prints how each ended:
// {address, options?, calls: [{path, bodies: [hex], stream?, metadata?: {name: text, or hex for -bin}, timeout_ms?}]}
// -> [{code, details, answers: [hex]}]
"use strict";
const grpc = require("@grpc/grpc-js");

const told = JSON.parse(require("fs").readFileSync(0, "utf8"));
const options = { "grpc.max_receive_message_length": -1, ...told.options };
const client = new grpc.Client(told.address, grpc.credentials.createInsecure(), options);
const same = (bytes) => bytes;

function metadataOf(call) {
  const metadata = new grpc.Metadata();
  for (const [name, value] of Object.entries(call.metadata ?? {})) {
    metadata.add(name, name.endsWith("-bin") ? Buffer.from(value, "hex") : value);
  }
  return metadata;
}

function made(call) {
  const how = call.timeout_ms === undefined ? {} : { deadline: Date.now() + call.timeout_ms };
  const bodies = call.bodies.map((body) => Buffer.from(body, "hex"));
  return new Promise((resolve) => {
    const answers = [];
    const ended = (code, details) => resolve({ code, details, answers });
    if (call.stream) {
      const stream = client.makeBidiStreamRequest(call.path, same, same, metadataOf(call), how);
      stream.on("data", (answer) => answers.push(answer.toString("hex")));
      stream.on("error", () => {});
      stream.on("status", (status) => ended(status.code, status.details));
      bodies.forEach((body) => stream.write(body));
      stream.end();
      return;
    }
    client.makeUnaryRequest(call.path, same, same, bodies[0], metadataOf(call), how, (error, answer) => {
      if (!error) answers.push(answer.toString("hex"));
      ended(error ? error.code : 0, error ? error.details : "");
    });
  });
}

Promise.all(told.calls.map(made)).then((results) => {
  process.stdout.write(JSON.stringify(results));
  client.close();
});
