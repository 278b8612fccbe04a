ray job submit --address="http://127.0.0.1:8265"
-- python3 -m openrlhf.cli.train_ppo_ray
--colocate_all_models
--vllm_enable_sleep --deepspeed_enable_sleep
--actor_num_nodes 2 --actor_num_gpus_per_node 8
--critic_num_nodes 0 --critic_num_gpus_per_node 0
--reward_num_nodes 0 --reward_num_gpus_per_node 0
--ref_num_nodes 0 --ref_num_gpus_per_node 0
--vllm_num_engines 4 --vllm_tensor_parallel_size 4
# ... other args
