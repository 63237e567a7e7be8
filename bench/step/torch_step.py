"""One training step of GPT-2 in PyTorch: the peer of bench/step/run.py. AdamW; bf16 is autocast,
the usual way.

With --ranks the step is that of one of so many processes under DistributedDataParallel over gloo,
who meet in the file --store: gradients are views of the buckets, which saves a copy."""
import torch
import torch.nn as nn

import torch_gpt2

parser = torch_gpt2.options()
parser.add_argument("--compile", action="store_true")
parser.add_argument("--static-graph", action="store_true", help="of DistributedDataParallel")
args = parser.parse_args()
torch_gpt2.start(args)
model = torch_gpt2.GPT2(args)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
loss_of = torch.compile(model) if args.compile else model
if args.ranks > 1:
    loss_of = nn.parallel.DistributedDataParallel(loss_of, gradient_as_bucket_view=True,
                                                  static_graph=args.static_graph)
torch_gpt2.train(args, loss_of, model, optimizer, lambda: torch_gpt2.autocast(args))
