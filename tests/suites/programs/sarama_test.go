// What programs do with sarama, as brokers of three versions, against $SUITE_BROKER.
package sarama_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

const wait = time.Minute

func inEach(t *testing.T, test func(t *testing.T, config *sarama.Config, own string)) {
	versions := []sarama.KafkaVersion{sarama.V2_8_0_0, sarama.V3_6_0_0, sarama.V4_3_0_0}
	for _, version := range versions {
		t.Run(version.String(), func(t *testing.T) {
			config := sarama.NewConfig()
			config.Version = version
			config.Producer.Return.Successes = true
			config.Producer.RequiredAcks = sarama.WaitForAll
			config.Consumer.Offsets.Initial = sarama.OffsetOldest
			name := strings.ToLower(strings.Split(t.Name(), "/")[0])
			own := fmt.Sprintf("%s-%s-%d", name, version, time.Now().UnixNano())
			test(t, config, own)
		})
	}
}

func brokers() []string { return []string{os.Getenv("SUITE_BROKER")} }

func admin(t *testing.T, config *sarama.Config) sarama.ClusterAdmin {
	found, err := sarama.NewClusterAdmin(brokers(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = found.Close() })
	return found
}

func made(t *testing.T, config *sarama.Config, topic string, partitions int32) sarama.ClusterAdmin {
	found := admin(t, config)
	detail := &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}
	require.NoError(t, found.CreateTopic(topic, detail, false))
	return found
}

func sent(t *testing.T, config *sarama.Config, messages ...*sarama.ProducerMessage) {
	producer, err := sarama.NewSyncProducer(brokers(), config)
	require.NoError(t, err)
	defer func() { require.NoError(t, producer.Close()) }()
	require.NoError(t, producer.SendMessages(messages))
}

func numbered(topic string, from, to int) (messages []*sarama.ProducerMessage) {
	for i := from; i < to; i++ {
		text := fmt.Sprint(i)
		messages = append(messages, &sarama.ProducerMessage{
			Topic: topic, Key: sarama.StringEncoder(text), Value: sarama.StringEncoder(text),
		})
	}
	return messages
}

// The messages of a partition, without a group.
func read(t *testing.T, config *sarama.Config, topic string, count int) (found []*sarama.ConsumerMessage) {
	consumer, err := sarama.NewConsumer(brokers(), config)
	require.NoError(t, err)
	defer func() { _ = consumer.Close() }()
	partition, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	require.NoError(t, err)
	defer func() { _ = partition.Close() }()
	for limit := time.After(wait); len(found) < count; {
		select {
		case message := <-partition.Messages():
			found = append(found, message)
		case <-limit:
			t.Fatalf("%d of %d messages came", len(found), count)
		}
	}
	return found
}

// A member that stores what it gets, and ends its session when it has all that it waits for.
type member struct {
	mutex  sync.Mutex
	claims []int
	values []string
	wanted int
	done   context.CancelFunc
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partitions := range session.Claims() {
		m.claims = append(m.claims, len(partitions))
	}
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m.mutex.Lock()
		m.values = append(m.values, string(message.Value))
		session.MarkMessage(message, "seen")
		if len(m.values) == m.wanted {
			m.done()
		}
		m.mutex.Unlock()
	}
	return nil
}

func (m *member) sorted() []string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.Sorted(slices.Values(m.values))
}

func asMember(t *testing.T, config *sarama.Config, group, topic string, wanted int) []string {
	joined, err := sarama.NewConsumerGroup(brokers(), group, config)
	require.NoError(t, err)
	defer func() { require.NoError(t, joined.Close()) }()
	ctx, done := context.WithTimeout(t.Context(), wait)
	defer done()
	one := &member{wanted: wanted, done: done}
	for ctx.Err() == nil {
		require.NoError(t, joined.Consume(ctx, []string{topic}, one))
	}
	return one.sorted()
}

func texts(from, to int) (found []string) {
	for _, message := range numbered("", from, to) {
		found = append(found, string(message.Value.(sarama.StringEncoder)))
	}
	slices.Sort(found)
	return found
}

func TestHeadersAndNullsComeBack(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		made(t, config, own, 1)
		headers := []sarama.RecordHeader{
			{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("a"), Value: []byte{0, 255}}, {Key: []byte("b")},
		}
		at := time.UnixMilli(1_700_000_000_123)
		sent(t, config,
			&sarama.ProducerMessage{
				Topic: own, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder("v"),
				Headers: headers, Timestamp: at,
			},
			&sarama.ProducerMessage{Topic: own},
		)
		found := read(t, config, own, 2)
		require.Equal(t, "k v", string(found[0].Key)+" "+string(found[0].Value))
		require.True(t, at.Equal(found[0].Timestamp))
		require.Len(t, found[0].Headers, 3)
		for i, header := range found[0].Headers {
			require.Equal(t, string(headers[i].Key)+string(headers[i].Value), string(header.Key)+string(header.Value))
		}
		require.Nil(t, found[1].Key)
		require.Nil(t, found[1].Value)
	})
}

func TestIdempotentProducerCountsOn(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		made(t, config, own, 1)
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
		config.Producer.Flush.MaxMessages = 7
		for _, codec := range []sarama.CompressionCodec{
			sarama.CompressionNone, sarama.CompressionGZIP, sarama.CompressionSnappy,
			sarama.CompressionLZ4, sarama.CompressionZSTD,
		} {
			config.Producer.Compression = codec
			sent(t, config, numbered(own, 0, 50)...)
		}
		for i, message := range read(t, config, own, 250) {
			require.EqualValues(t, i, message.Offset)
			require.Equal(t, fmt.Sprint(i%50), string(message.Value))
		}
	})
}

func TestGroupGoesOnWhereItCommitted(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		made(t, config, own, 3)
		for _, strategy := range []sarama.BalanceStrategy{
			sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategyRoundRobin(), sarama.NewBalanceStrategySticky(),
		} {
			config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy}
			sent(t, config, numbered(own, 0, 30)...)
			require.Equal(t, texts(0, 30), asMember(t, config, own, own, 30))
		}
		offsets, err := admin(t, config).ListConsumerGroupOffsets(own, map[string][]int32{own: {0, 1, 2}})
		require.NoError(t, err)
		sum := int64(0)
		for partition := range int32(3) {
			block := offsets.GetBlock(own, partition)
			sum += block.Offset
			require.Equal(t, "seen", block.Metadata)
		}
		require.EqualValues(t, 90, sum)
	})
}

func TestTwoMembersShareTheWork(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		made(t, config, own, 4)
		ctx, done := context.WithTimeout(t.Context(), wait)
		defer done()
		members := []*member{{}, {}}
		var ended sync.WaitGroup
		for _, one := range members {
			joined, err := sarama.NewConsumerGroup(brokers(), own, config)
			require.NoError(t, err)
			ended.Add(1)
			go func() {
				defer ended.Done()
				defer func() { _ = joined.Close() }()
				for ctx.Err() == nil {
					_ = joined.Consume(ctx, []string{own}, one)
				}
			}()
		}
		last := func(one *member) int {
			one.mutex.Lock()
			defer one.mutex.Unlock()
			if len(one.claims) == 0 {
				return 0
			}
			return one.claims[len(one.claims)-1]
		}
		halved := func() bool { return last(members[0]) == 2 && last(members[1]) == 2 }
		require.Eventually(t, halved, wait, 50*time.Millisecond)
		sent(t, config, numbered(own, 0, 100)...)
		all := func() []string {
			return slices.Sorted(slices.Values(append(members[0].sorted(), members[1].sorted()...)))
		}
		require.Eventually(t, func() bool { return len(all()) >= 100 }, wait, 50*time.Millisecond)
		require.Equal(t, texts(0, 100), all())
		require.NotEmpty(t, members[0].sorted())
		require.NotEmpty(t, members[1].sorted())
		done()
		ended.Wait()
	})
}

func TestAdminOfTopics(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		admin := made(t, config, own, 2)
		require.ErrorIs(t, admin.CreateTopic(own, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false),
			sarama.ErrTopicAlreadyExists)
		require.NoError(t, admin.CreatePartitions(own, 3, nil, false))
		shown, err := admin.DescribeTopics([]string{own})
		require.NoError(t, err)
		require.Len(t, shown[0].Partitions, 3)
		listed, err := admin.ListTopics()
		require.NoError(t, err)
		require.EqualValues(t, 3, listed[own].NumPartitions)
		hours := "7200000"
		require.NoError(t, admin.AlterConfig(sarama.TopicResource, own, map[string]*string{"retention.ms": &hours}, false))
		size := "2000000"
		set := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &size}
		changes := map[string]sarama.IncrementalAlterConfigsEntry{"segment.bytes": set}
		require.NoError(t, admin.IncrementalAlterConfig(sarama.TopicResource, own, changes, false))
		entries, err := admin.DescribeConfig(sarama.ConfigResource{Type: sarama.TopicResource, Name: own})
		require.NoError(t, err)
		values := map[string]string{}
		for _, entry := range entries {
			values[entry.Name] = entry.Value
		}
		require.Equal(t, hours, values["retention.ms"])
		require.Equal(t, size, values["segment.bytes"])
		require.NoError(t, admin.DeleteTopic(own))
		require.Eventually(t, func() bool {
			listed, err = admin.ListTopics()
			_, there := listed[own]
			return err == nil && !there
		}, wait, 50*time.Millisecond)
	})
}

func TestAdminOfRecordsAndFolders(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		admin := made(t, config, own, 1)
		sent(t, config, numbered(own, 0, 10)...)
		require.NoError(t, admin.DeleteRecords(own, map[int32]int64{0: 4}))
		require.EqualValues(t, 4, read(t, config, own, 6)[0].Offset)
		client, err := sarama.NewClient(brokers(), config)
		require.NoError(t, err)
		defer func() { _ = client.Close() }()
		for of, wanted := range map[int64]int64{sarama.OffsetOldest: 4, sarama.OffsetNewest: 10, 1: 4} {
			offset, err := client.GetOffset(own, 0, of)
			require.NoError(t, err)
			require.Equal(t, wanted, offset)
		}
		nodes, controller, err := admin.DescribeCluster()
		require.NoError(t, err)
		ids := []int32{}
		for _, node := range nodes {
			ids = append(ids, node.ID())
		}
		require.Contains(t, ids, controller)
		folders, err := admin.DescribeLogDirs(ids)
		require.NoError(t, err)
		sizes := map[string]int64{}
		for _, ofNode := range folders {
			for _, folder := range ofNode {
				for _, topic := range folder.Topics {
					for _, partition := range topic.Partitions {
						sizes[topic.Topic] += partition.Size
					}
				}
			}
		}
		require.Positive(t, sizes[own])
	})
}

func TestAdminOfGroups(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		admin := made(t, config, own, 1)
		sent(t, config, numbered(own, 0, 3)...)
		asMember(t, config, own, own, 3)
		listed, err := admin.ListConsumerGroups()
		require.NoError(t, err)
		require.Equal(t, "consumer", listed[own])
		shown, err := admin.DescribeConsumerGroups([]string{own})
		require.NoError(t, err)
		require.Equal(t, "Empty", shown[0].State)
		require.NoError(t, admin.DeleteConsumerGroupOffset(own, own, 0))
		offsets, err := admin.ListConsumerGroupOffsets(own, map[string][]int32{own: {0}})
		require.NoError(t, err)
		require.EqualValues(t, -1, offsets.GetBlock(own, 0).Offset)
		require.NoError(t, admin.DeleteConsumerGroup(own))
		listed, err = admin.ListConsumerGroups()
		require.NoError(t, err)
		require.NotContains(t, listed, own)
	})
}

func TestTransactionIsBegun(t *testing.T) {
	inEach(t, func(t *testing.T, config *sarama.Config, own string) {
		made(t, config, own, 1)
		config.Producer.Idempotent = true
		config.Producer.Transaction.ID = own
		config.Producer.Transaction.Retry.Max = 1
		config.Net.MaxOpenRequests = 1
		producer, err := sarama.NewSyncProducer(brokers(), config)
		require.NoError(t, err)
		defer func() { _ = producer.Close() }()
		require.NoError(t, producer.BeginTxn())
	})
}
